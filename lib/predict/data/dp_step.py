"""Data parallelism in one process, predicted: five exchanges a batch, all through device 0.

    scatter x · broadcast W · forward · gather y · scatter dy · backward · reduce dW · step

Device 0 sends to, or receives from, one device after the other, as threads of one process do; in
the reduce it adds up what it receives. Between GPUs PyTorch leaves broadcast and reduce to NCCL,
which passes the model through a ring of all devices. The ranks of the ledger are devices. DDP
reaches the same gradients with one all_reduce.
"""

from lib.ledger import Ledger, Row
from lib.predict import memory, step
from lib.predict.arguments import equal_share, whole
from lib.predict.provenance import of_prediction
from lib.predict.shape import ModelShape


def exchanges(
    shape: ModelShape, batch_bytes: int, batch: int, itemsize: int = 4
) -> list[tuple[str, int]]:
    """Return the five exchanges of a batch, (operation, bytes of the full buffer), in order.

    `batch_bytes` are those of the inputs. The bytes are the same for any number of devices.
    """
    whole(batch_bytes, "batch_bytes", 0)
    model, out = shape.nbytes(itemsize), memory.outputs(shape, batch, None, itemsize)
    return [
        ("scatter", batch_bytes),
        ("broadcast", model),
        ("gather", out),
        ("scatter", out),
        ("reduce", model),
    ]


def data_parallel_devices_step(
    shape: ModelShape, batch: int, devices: int, speeds, *, batch_bytes: int, itemsize: int = 4,
    ring: bool = False,
) -> Ledger:  # fmt: skip
    """Predict one batch: when each device computes, and when device 0 sends or receives.

    `speeds.compute(flop, bytes)` and `speeds.moving("send", 2, bytes)` return seconds. With `ring`
    the broadcast and the reduce are NCCL's (torch/csrc/cuda/comm.cpp and torch/nn/parallel/comm.py
    call it where it is available): all devices take part at the same time. Forward, backward and
    the step of plain SGD are those of lib/predict/step.py. Raises ValueError for a batch that the
    devices cannot share equally.
    """
    batch, devices = whole(batch, "batch"), whole(devices, "devices")
    share = equal_share(batch, devices, sharers="{} devices")
    in_order = exchanges(shape, batch_bytes, batch, itemsize)
    everyone = tuple(range(devices))
    rows: list[Row] = []
    clock = 0.0

    def exchange(number: int) -> None:
        nonlocal clock
        op, nbytes = in_order[number]
        message = nbytes if op in ("broadcast", "reduce") else nbytes / devices
        common = {"group": "devices", "members": everyone, "number": number, "peer": 0}
        began = clock
        if ring and op in ("broadcast", "reduce"):
            clock += speeds.moving(op, devices, nbytes)
            for device in everyone:
                rows.append(Row(device, "comm", op, began, clock, bytes=nbytes, **common))
            return
        for device in everyone[1:]:
            start, clock = clock, clock + speeds.moving("send", 2, message)
            rows.append(Row(device, "comm", op, start, clock, bytes=nbytes, **common))
        rows.append(Row(0, "comm", op, began, clock, bytes=nbytes, **common))

    def compute(op: str, operations: list, on: tuple[int, ...]) -> None:
        nonlocal clock
        end, nbytes = clock + step.seconds(operations, speeds), sum(op.bytes for op in operations)
        rows.extend(Row(device, "compute", op, clock, end, bytes=nbytes) for device in on)
        clock = end

    exchange(0)
    exchange(1)
    compute("forward", step.forward(shape, share, itemsize=itemsize), everyone)
    exchange(2)
    exchange(3)
    compute("backward", step.backward(shape, share, itemsize=itemsize), everyone)
    exchange(4)
    compute("step", step.update(shape, itemsize), (0,))
    return Ledger(rows, source="predicted", meta=of_prediction(speeds))
