"""What travels between the kernel and its ranks: cloudpickle for code, plain bytes for tensors."""

import io
import pickle
import struct

import cloudpickle
import torch


class _Packer(cloudpickle.Pickler):
    """Pickle by value what `__main__` defines; set each tensor's storage aside once, uncopied."""

    def __init__(self, file):
        super().__init__(file, protocol=5)
        self.storages: dict[int, tuple[int, memoryview]] = {}

    def persistent_id(self, item):
        # Keyed by the storage, not the tensor: two tensors that share memory still share it there.
        if not isinstance(item, torch.storage.TypedStorage | torch.UntypedStorage):
            return None
        typed = isinstance(item, torch.storage.TypedStorage)
        storage = item._untyped_storage if typed else item
        if storage._cdata not in self.storages:
            place = storage.cpu()  # a rank's GPU means nothing in another process
            flat = torch.empty(0, dtype=torch.uint8).set_(place)
            self.storages[storage._cdata] = (len(self.storages), memoryview(flat.numpy()))
        return (self.storages[storage._cdata][0], str(item.dtype)[6:] if typed else None)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file, buffers):
        super().__init__(file)
        self.storages = [
            # bytearray: a tensor must be free to write in its memory
            torch.frombuffer(bytearray(buffer), dtype=torch.uint8).untyped_storage()
            if len(buffer)
            else torch.UntypedStorage(0)
            for buffer in buffers
        ]

    def persistent_load(self, token):
        index, dtype = token
        storage = self.storages[index]
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(
            wrap_storage=storage, dtype=getattr(torch, dtype), _internal=True
        )


def pack(item) -> list:
    """Turn any value into a list of buffers, `[pickle, storage, storage, ...]`."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(item)
    return [file.getbuffer(), *(view for _, view in packer.storages.values())]


def unpack(buffers: list):
    """Give back the value that `pack` took apart; tensors arrive on the CPU."""
    return _Unpacker(io.BytesIO(buffers[0]), buffers[1:]).load()


def send(connection, buffers: list) -> None:
    """Write packed buffers to a connection as one message; small ones cost one system call."""
    head = struct.pack(f"<I{len(buffers)}Q", len(buffers), *(len(b) for b in buffers))
    if len(buffers) == 1 and len(buffers[0]) < 1 << 16:
        connection.send_bytes(head + bytes(buffers[0]))
        return
    connection.send_bytes(head)
    for buffer in buffers:
        if len(buffer):
            connection.send_bytes(buffer)


def receive(connection) -> list:
    """Read one message that `send` wrote."""
    first = memoryview(connection.recv_bytes())
    (count,) = struct.unpack_from("<I", first)
    sizes = struct.unpack_from(f"<{count}Q", first, 4)
    if len(first) > 4 + 8 * count:
        return [first[4 + 8 * count :]]
    return [connection.recv_bytes() if size else b"" for size in sizes]


def culprit(item, name: str = "the result", depth: int = 4) -> str:
    """Name the innermost part of `item` that cannot be pickled, as a reader would write it."""
    try:
        pack(item)
        return ""
    except Exception as error:
        here = f"{name} ({type(item).__name__}): {error}"
    if depth:
        if isinstance(item, dict):
            parts = [(value, f"{name}[{key!r}]") for key, value in item.items()]
        elif isinstance(item, list | tuple):
            parts = [(value, f"{name}[{i}]") for i, value in enumerate(item)]
        else:
            parts = [(v, f"{name}.{k}") for k, v in getattr(item, "__dict__", {}).items()]
        for value, label in parts:
            inner = culprit(value, label, depth - 1)
            if inner:
                return inner
    return here
