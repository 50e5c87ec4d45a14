"""What a rank keeps of a model under each stage of ZeRO, beside the memory of its device."""

from lib.draw.parts import captions, style
from lib.draw.parts.picture import Picture
from lib.predict import hardware
from lib.predict.arguments import whole
from lib.predict.memory import STATES
from lib.predict.sharded.models import model, models
from lib.predict.sharded.states import PRECISIONS, STAGES, Convention, held, keeping

_CAPTION = (
    "Predicted: the bytes that each rank keeps from step to step. {others}, whole gradients for a "
    "moment, buffers and what the allocator adds come on top. A bar of more than four times the "
    "device's memory is cut off"
)


def states(
    size: str | int = "Llama 3 8B", *, ranks: int = 8, optimizer: str = "adamw",
    precision: str = "mixed", gpu: str = "H100", activations: int = 0, caption: str = "",
) -> Picture:  # fmt: skip
    """Draw the bytes of a rank by kind for ZeRO's stages 0 to 3, and the device's memory as a line.

    `size` is a number of parameters, or the name of a real model in data/sharded.yaml. Model,
    ranks, optimizer with precision (see `keeping`), and device can be turned. `activations` are
    bytes that each rank holds in addition, which no stage shards. `caption` is a sentence more.
    """
    chosen, ranks = keeping(optimizer, precision), whole(ranks, "ranks")
    numel = model(size).numel if isinstance(size, str) else whole(size, "The number of parameters")
    sizes = _sizes(numel)
    kept = [keeping(o, p) for p in PRECISIONS for o in STATES if o != "adam"]
    if chosen not in kept:
        kept.append(chosen)
    gpus = devices(gpu)
    counts = sorted({2**n for n in range(13)} | {ranks})
    others = "Gathered units" if activations else "Activations, gathered units"
    data = {
        "sizes": sizes, "ranks": counts, "gpus": gpus,
        "kept": [{name: getattr(one, name) for name in _KEPT} for one in kept],
        "activations": whole(activations, "The bytes of activations", 0),
        "start": {
            "size": next(n for n, entry in enumerate(sizes) if entry["numel"] == numel),
            "ranks": counts.index(ranks), "kept": kept.index(chosen),
            "gpu": [entry["name"] for entry in gpus].index(hardware.gpu(gpu).name),
        },
        "caption": captions.joined(_CAPTION.format(others=others), caption),
    }  # fmt: skip
    return Picture(_story(data, chosen), ("states", data))


_KEPT = ("name", "parameters", "gradients", "optimizer")


def _sizes(numel: int) -> list[dict]:
    """Return the sizes that can be chosen: real models by name, and round numbers between them."""
    named = {model(name).numel: name for name in models()}
    rounds = {m * 10**e for e in range(8, 13) for m in (1, 2, 5)}
    return [{"numel": n, "name": named.get(n, "")} for n in sorted({*named, *rounds, numel})]


def devices(gpu: str) -> list[dict]:
    """Return name and memory in bytes of the table's devices, and of `gpu` where it is another.

    Raises ValueError for a name that is not known.
    """
    names = dict.fromkeys([*hardware.gpus(), hardware.gpu(gpu).name])
    return [{"name": name, "memory": int(hardware.gpu(name).memory_bytes)} for name in names]


def _story(data: dict, counted: Convention) -> str:
    """The same in words, to the byte."""
    start = data["start"]
    entry, ranks = data["sizes"][start["size"]], data["ranks"][start["ranks"]]
    gpu, numel = data["gpus"][start["gpu"]], entry["numel"]
    many = f"{ranks:,} rank{'s' * (ranks != 1)}"
    lines = [
        f"memory of a rank by stage of ZeRO: {entry['name'] or 'A model'}, {numel:,} parameters on "
        f"{many}, {counted.name}, {gpu['name']}, {style.amount(gpu['memory'], 'B')}"
    ]
    for stage in STAGES:
        kept = held(numel, ranks, stage, counted)._replace(activations=data["activations"])
        parts = ", ".join(f"{kind} {size:,}" for kind, size in kept._asdict().items() if size)
        fits = "fits" if kept.total <= gpu["memory"] else "does not fit"
        lines.append(f"  stage {stage}: {parts}: {kept.total:,} bytes, {fits}")
    return "\n".join(lines)
