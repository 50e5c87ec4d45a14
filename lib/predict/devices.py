"""Data parallel in one process on paper: five exchanges a batch, all of them through device 0.

    scatter x · broadcast W · forward · gather y · scatter dy · backward · reduce dW · step

Device 0 sends to, or receives from, one device after the other, as threads of one process do; a
reduce adds what comes. Ranks of the ledger are devices. What it ends with costs DDP one all_reduce.
"""

from lib.ledger import Ledger, Row
from lib.predict import memory
from lib.predict.flops import flops
from lib.predict.shape import ModelShape


def exchanges(
    shape: ModelShape, batch_bytes: int, batch: int, itemsize: int = 4
) -> list[tuple[str, int]]:
    """Give the five exchanges of a batch, (operation, bytes of the full buffer), in order.

    `batch_bytes` are those of the inputs; they are the same for any number of devices.
    """
    model, out = shape.nbytes(itemsize), memory.outputs(shape, batch, None, itemsize)
    return [
        ("scatter", batch_bytes),
        ("broadcast", model),
        ("gather", out),
        ("scatter", out),
        ("reduce", model),
    ]


def data_parallel_devices_step(
    shape: ModelShape, batch: int, devices: int, speeds, *, batch_bytes: int, itemsize: int = 4
) -> Ledger:
    """Predict one batch: when each device works, and when device 0 moves what.

    `speeds.compute(flop, bytes)` and `speeds.moving("send", 2, bytes)` give seconds. The step is
    plain SGD's: it reads weight and gradient and writes the weight. Raises ValueError for a batch
    that the devices cannot share equally.
    """
    if batch % devices:
        raise ValueError(f"dim 0 has {batch} entries: {devices} cannot share them equally")
    model, share = shape.nbytes(itemsize), batch // devices
    work = flops(shape, share)
    passes = {"forward": (work.forward, model), "backward": (work.backward, 2 * model)}
    five = exchanges(shape, batch_bytes, batch, itemsize)
    everyone = tuple(range(devices))
    rows: list[Row] = []
    clock = 0.0

    def exchange(number: int) -> None:
        nonlocal clock
        op, nbytes = five[number]
        each = nbytes if op in ("broadcast", "reduce") else nbytes / devices
        common = {"group": "devices", "members": everyone, "number": number, "peer": 0}
        began = clock
        for device in everyone[1:]:
            start, clock = clock, clock + speeds.moving("send", 2, each)
            rows.append(Row(device, "comm", op, start, clock, bytes=nbytes, **common))
        rows.append(Row(0, "comm", op, began, clock, bytes=nbytes, **common))

    def compute(op: str, flop: int, nbytes: int, on: tuple[int, ...]) -> None:
        nonlocal clock
        end = clock + speeds.compute(flop, nbytes)
        rows.extend(Row(device, "compute", op, clock, end, bytes=nbytes) for device in on)
        clock = end

    exchange(0)
    exchange(1)
    compute("forward", *passes["forward"], everyone)
    exchange(2)
    exchange(3)
    compute("backward", *passes["backward"], everyone)
    exchange(4)
    compute("step", 0, 3 * model, (0,))
    return Ledger(rows, source="predicted")
