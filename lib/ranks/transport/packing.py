"""What travels between the kernel and its ranks: cloudpickle for code, plain bytes for tensors."""

import contextlib
import functools
import io
import marshal
import pickle
import types

import cloudpickle
import torch

from lib.ranks.state import namespace
from lib.ranks.transport import operations

_STORAGES = (torch.storage.TypedStorage, torch.UntypedStorage)
_RANDOM_STATE = torch.Generator().get_state().shape
_NO_TYPED_STORAGE = torch.storage._new_dtypes()  # float8, uint16, complex32 and their like


class Packer(cloudpickle.Pickler):
    """Pickle by value what `__main__` defines; set each tensor's storage aside once, uncopied.

    A function whose globals are `home` leaves them behind and finds the rank's names in their
    place; `reads` then holds the names it asks for, each with the function that does.
    """

    def __init__(self, file, home: dict | None = None):
        super().__init__(file, protocol=5)
        self.home, self.reads = home, {}
        # By address, which no other storage can get: (place, bytes, the storage itself).
        self.storages: dict[int, tuple[int, memoryview, torch.UntypedStorage]] = {}
        self.on_cpu: set[int] = set()  # storages that stay there: see default_device.py
        self.anywhere: set[int] = set()  # counts of steps that may leave it

    def reducer_override(self, item):
        """Reduce what pickle would reduce wrongly: tensors' gradients, new dtypes, globals."""
        if isinstance(item, torch.Tensor):
            self.on_cpu.update(_cpu_only(item))
            return _tensor(item)
        if type(item) is torch.Generator and item.device.type != "cpu":
            raise TypeError(
                f"A random generator of {item.device} cannot leave its process. Send what its "
                "get_state() gives."
            )
        if isinstance(item, types.CodeType):  # cloudpickle 3.1.3 leaves out its file, or its cell
            return marshal.loads, (marshal.dumps(item),)
        if (named := operations.by_name(item)) is not None:
            return named
        if isinstance(item, torch.optim.Optimizer):
            self.anywhere.update(_counted_on_gpu(item))
        reduced = super().reducer_override(item)
        if self.home is None or not isinstance(item, types.FunctionType):
            return reduced
        if item.__globals__ is not self.home or reduced is NotImplemented:
            return reduced
        make, (code, _, *rest), (state, slots), *others = reduced
        self.reads.update(dict.fromkeys(slots["__globals__"], item.__name__))
        return make, (code, _Names(), *rest), (state, slots | {"__globals__": {}}), *others

    def persistent_id(self, item):
        """Give what stands for a storage: its place in the parcel, its dtype, whether it stays."""
        if type(item) is dict and "step" in item:
            self.on_cpu.update(_steps(item) - self.anywhere)
        # Keyed by the storage, not the tensor: two tensors that share memory still share it there.
        if not isinstance(item, _STORAGES):
            return None
        typed = isinstance(item, torch.storage.TypedStorage)
        storage = item._untyped_storage if typed else item
        if storage._cdata not in self.storages:
            home = storage.cpu()  # a rank's GPU means nothing in another process
            flat = torch.empty(0, dtype=torch.uint8, device="cpu").set_(home)
            view = memoryview(flat.numpy())
            self.storages[storage._cdata] = (len(self.storages), view, storage)
        place, *_ = self.storages[storage._cdata]
        dtype = str(item.dtype)[6:] if typed else None
        return place, dtype, storage._cdata in self.on_cpu


def _cpu_only(tensor: torch.Tensor) -> set[int]:
    """Give the storages of a tensor that PyTorch wants on the CPU wherever it computes."""
    if tensor.is_nested and tensor.layout is torch.strided:
        shapes = tensor._nested_tensor_size(), tensor._nested_tensor_strides()
        return _storages([*shapes, tensor._nested_tensor_storage_offsets()])
    if tensor.dtype is torch.uint8 and tensor.shape == _RANDOM_STATE:
        with contextlib.suppress(RuntimeError, TypeError):  # no generator's state
            torch.Generator().set_state(tensor)
            return _storages([tensor])
    return set()


def _steps(item: dict) -> set[int]:
    """Give the storage of an optimizer's count of steps, where a dict is a parameter's state."""
    step = item.get("step")
    return _storages([step]) if isinstance(step, torch.Tensor) and not step.dim() else set()


def _counted_on_gpu(optimizer) -> set[int]:
    """Give the counts of steps that an optimizer wants where its parameters are."""
    groups = [g for g in optimizer.param_groups if g.get("fused") or g.get("capturable")]
    states = [optimizer.state.get(p, {}) for group in groups for p in group["params"]]
    return {storage for state in states for storage in _steps(state)}


def _storages(tensors) -> set[int]:
    return {t.untyped_storage()._cdata for t in tensors if t.device.type == "cpu"}


class _Names:
    """Stands for the names of the rank on which it is unpacked."""

    def __reduce__(self):
        return namespace.names, ()


def _tensor(tensor):
    """Reduce a tensor as torch does, with its gradient."""
    new = tensor.dtype in _NO_TYPED_STORAGE
    gradient = tensor.grad if tensor.is_leaf else None
    if not new and gradient is None:
        return NotImplemented
    rebuild, args, *rest = tensor.__reduce_ex__(5)
    if rebuild is torch._utils._rebuild_tensor_v3:
        rebuild = _rebuilt
    elif args and args[0] is torch._utils._rebuild_tensor_v3:  # with attributes, or of a class
        args = (_rebuilt, *args[1:])
    if gradient is None or rest:
        return rebuild, args, *rest
    return rebuild, args, gradient, None, None, _set_gradient


def _rebuilt(storage, *rest):
    """Build a tensor of a dtype that has no typed storage; torch asks for one all the same."""
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
    return torch._utils._rebuild_tensor_v3(typed, *rest)


def _set_gradient(tensor, gradient) -> None:
    tensor.grad = gradient


class _Unpacker(pickle.Unpickler):
    def __init__(self, file, buffers, device):
        super().__init__(file)
        self.buffers, self.device, self.storages = buffers, device, {}

    def persistent_load(self, token):
        place, dtype, stays = token
        if place not in self.storages:
            self.storages[place] = _storage(self.buffers[place], "cpu" if stays else self.device)
        if dtype is None:
            return self.storages[place]
        return torch.storage.TypedStorage(
            wrap_storage=self.storages[place], dtype=getattr(torch, dtype), _internal=True
        )


def _storage(buffer, device):
    """Make a storage of what has arrived; on the CPU it is this very memory."""
    if not len(buffer):
        return torch.UntypedStorage(0, device=device)
    arrived = torch.frombuffer(_writable(buffer), dtype=torch.uint8)
    return arrived.to(device).untyped_storage()


def _writable(buffer):
    """A tensor must be free to write in its memory; what has arrived is a bytearray of its own."""
    return buffer if isinstance(buffer, bytearray) else bytearray(buffer)


_PLAIN = frozenset([type(None), bool, int, float, str, bytes])


def _is_plain(item) -> bool:
    """Tell whether `item` is a number, text or None, or a short list or tuple of such."""
    kind = type(item)
    if kind is tuple or kind is list:
        return len(item) < 9 and all(map(_is_plain, item))
    return kind in _PLAIN


def pack(item, home: dict | None = None) -> list:
    """Turn any value into a list of buffers, `[pickle, storage, storage, ...]`.

    Functions whose globals are `home` will see the names of the rank instead.
    """
    if _is_plain(item):  # in the fifth part of the time
        return [pickle.dumps(item, protocol=5)]
    file = io.BytesIO()
    packer = Packer(file, home)
    packer.dump(item)
    return [file.getbuffer(), *(view for _, view, _ in packer.storages.values())]


def unpack(buffers: list, device: torch.device | str = "cpu"):
    """Give back the value that `pack` took apart; tensors arrive on `device`."""
    if not torch._C._len_torch_function_stack():
        return _unpack(buffers, device)
    with torch.device(device):  # instead of the default one, which some tensors would take
        return _unpack(buffers, device)


def _unpack(buffers: list, device):
    if len(buffers) == 1:  # no tensor is in it
        return pickle.loads(buffers[0])
    return _Unpacker(io.BytesIO(buffers[0]), buffers[1:], device).load()


def culprit(item, name: str = "the result", depth: int = 4) -> str:
    """Name the innermost part of `item` that cannot be pickled, as a reader would write it."""
    try:
        pack(item)
        return ""
    except Exception as error:
        here = f"{name} ({type(item).__name__}): {error}"
    for part, label in _parts(item, name) if depth else ():
        inner = culprit(part, label, depth - 1)
        if inner:
            return inner
    return here


def _parts(item, name: str):
    """Give what `item` consists of, each with its name."""
    if isinstance(item, dict):
        yield from ((value, f"{name}[{key!r}]") for key, value in item.items())
    elif isinstance(item, list | tuple | set | frozenset):
        yield from ((value, f"{name}[{i}]") for i, value in enumerate(item))
    elif isinstance(item, functools.partial):
        yield from ((part, name) for part in (item.func, item.args, item.keywords))
    elif isinstance(item, types.MethodType):
        yield item.__self__, f"the object of {item.__func__.__qualname__}"
    elif isinstance(item, types.FunctionType):
        _, _, (_, slots), *_ = Packer(io.BytesIO()).reducer_override(item)  # it goes by value
        for name, part in slots["__globals__"].items():
            yield part, f"global `{name}` of {item.__name__}"
        for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing is in it yet
                yield cell.cell_contents, f"outer variable `{name}` of {item.__name__}"
        yield item.__defaults__, f"the defaults of {item.__name__}"
    else:
        yield from ((v, f"{name}.{k}") for k, v in getattr(item, "__dict__", {}).items())
        if type(item).__module__ == "__main__":
            yield type(item), f"class {type(item).__name__}"


def culprit_of_call(function, args, kwargs) -> str:
    """Name the part of a call that cannot be pickled."""
    return culprit(args, "the arguments") or culprit(kwargs) or culprit(function, "the function")
