"""What each optimizer keeps of a model, beside its loss over a few seeds."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import isfinite, prod
from typing import NamedTuple

from lib.draw.parts import captions, style
from lib.draw.parts.picture import Picture
from lib.draw.states import devices
from lib.predict import hardware
from lib.predict.arguments import whole
from lib.predict.optimizers import state_bytes
from lib.predict.shape import ModelShape
from lib.predict.sharded.models import model, models
from lib.predict.sharded.states import PRECISIONS

# How a picture names an optimizer -> its name and options for `state_bytes`.
OPTIMIZERS = {
    "sgd": ("sgd", {}),
    "momentum": ("momentum", {}),
    "adamw": ("adamw", {}),
    "adafactor": ("adafactor", {}),
    "adafactor + momentum": ("adafactor", {"momentum": True}),
    "sm3": ("sm3", {}),  # with the momentum that its paper trains with
    "sm3 without momentum": ("sm3", {"momentum": False}),
    "adam8bit": ("adam8bit", {}),
    "muon": ("muon", {}),
}
PLAIN = "adamw"  # whose loss the others are compared with
_WEIGHTS = {"fp32": (4, 4, 0, 4), "mixed": (2, 2, 4, 4), "bf16": (2, 2, 0, 2)}
_KINDS = "parameters", "gradients", "copy", "optimizer"
_CAPTION = (
    "Bars: predicted from the shapes of the parameters. Activations, buffers and what the "
    "allocator adds come on top. Beside a name stand the optimizer's states alone, in all and, "
    "where there is room, for each parameter"
)
_LOSSES = (
    "Points: measured in a small training, one for each seed, whatever model is chosen for the bars"
)


class _Model(NamedTuple):
    """Holds a model's name and its parameters, as `state_bytes` takes them."""

    name: str
    shapes: ModelShape | tuple[tuple[int, ...], ...]

    @property
    def numel(self) -> int:
        if isinstance(self.shapes, ModelShape):
            return self.shapes.numel
        return sum(prod(shape) for shape in self.shapes)


def optimizers(
    size: str | ModelShape | Iterable[Sequence[int]] = "Llama 3 8B",
    losses: Mapping[str, Sequence[float]] | None = None, *,
    precision: str = "mixed", gpu: str = "H100", names: Sequence[str] = tuple(OPTIMIZERS),
    losses_are: str = _LOSSES, caption: str = "",
) -> Picture:  # fmt: skip
    """Draw the bytes that a device keeps with each optimizer, and the losses that were measured.

    `size` is the name of a model in data/sharded.yaml, a model's shape, or the shapes of its
    parameters. `losses` maps names of OPTIMIZERS to one loss for each seed, in nats; one that is
    not finite is drawn as diverged. `names` are the rows, from above. Model, precision ("fp32",
    "mixed" or "bf16", as in `keeping`) and device can be turned. `losses_are` says where the losses
    come from, and `caption` is a sentence more.
    Raises ValueError for a name that is not known, and for losses without a row.
    """
    names, losses = list(names), {name: list(own) for name, own in (losses or {}).items()}
    _check(names, losses, precision)
    every, start = _models(size)
    gpus = devices(gpu)
    data = {
        "names": names,
        "models": [
            {
                "name": one.name, "numel": one.numel,
                "kept": [[_kept(one, name, p) for name in names] for p in PRECISIONS],
            }
            for one in every
        ],
        "precisions": [dict(zip(("name", *_KINDS[:3]), (p, *_WEIGHTS[p][:3]))) for p in PRECISIONS],
        "gpus": gpus,
        "losses": [[_drawable(loss) for loss in losses.get(name, ())] for name in names],
        "plain": names.index(PLAIN) if losses.get(PLAIN) else -1,
        "start": {
            "model": start, "precision": PRECISIONS.index(precision),
            "gpu": [entry["name"] for entry in gpus].index(hardware.gpu(gpu).name),
        },
        "caption": captions.joined(_CAPTION, losses_are if losses else "", caption),
    }  # fmt: skip
    return Picture(_story(data), ("optimizers", data))


def _check(names: list[str], losses: dict, precision: str) -> None:
    for name in [*names, *losses]:
        if name not in OPTIMIZERS:
            raise ValueError(
                f"No optimizer here is called {name!r}. Choose among {', '.join(OPTIMIZERS)}."
            )
    if not names or len(set(names)) < len(names):
        raise ValueError("`names` must be one or more optimizers, each of them once.")
    if missing := [name for name in losses if name not in names]:
        raise ValueError(f"There are losses of {missing[0]!r}, but `names` has no row for it.")
    if precision not in PRECISIONS:
        raise ValueError(f"`precision` is one of {', '.join(PRECISIONS)}, not {precision!r}.")


def _models(size) -> tuple[list[_Model], int]:
    """Return the models that can be chosen, and the number of the first one."""
    every = [_Model(name, model(name)) for name in models()]
    if isinstance(size, str):
        return every, [one.shapes for one in every].index(model(size))
    if not isinstance(size, ModelShape):
        size = tuple(tuple(whole(n, "A size of a shape") for n in shape) for shape in size)
        if not size:
            raise ValueError("There are no shapes: give one for each parameter.")
    return [_Model("the given model", size), *every], 0


@cache
def _kept(one: _Model, name: str, precision: str) -> int:
    """Return the bytes of an optimizer's states for a model."""
    known, options = OPTIMIZERS[name]
    return state_bytes(known, one.shapes, _WEIGHTS[precision][3], **options)


def _drawable(loss: float) -> float | None:
    """Return a loss with as many digits as can be seen, or None where it is not finite."""
    return float(f"{float(loss):.6g}") if isfinite(loss) else None


def _story(data: dict) -> str:
    """The same in words, to the byte; losses are left out, because they are measured."""
    start = data["start"]
    one, gpu = data["models"][start["model"]], data["gpus"][start["gpu"]]
    precision = data["precisions"][start["precision"]]
    weights = sum(precision[kind] for kind in _KINDS[:3]) * one["numel"]
    lines = [
        f"bytes kept with each optimizer: {one['name']}, {one['numel']:,} parameters, "
        f"{precision['name']}, {gpu['name']}, {style.amount(gpu['memory'], 'B')}"
    ]
    for n, name in enumerate(data["names"]):
        kept, seeds = one["kept"][start["precision"]][n], len(data["losses"][n])
        fits = "fits" if weights + kept <= gpu["memory"] else "does not fit"
        measured = f", losses of {seeds} seed{'s' * (seeds != 1)}" if seeds else ""
        lines.append(
            f"  {name}: optimizer {kept:,}, all {weights + kept:,} bytes, {fits}{measured}"
        )
    return "\n".join(lines)
