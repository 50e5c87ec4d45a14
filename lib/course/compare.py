"""Where two results first differ, in words."""

import torch


def difference(got, wanted, name: str = "what it returned", close: float = 1e-5) -> str:
    """Say where `got` first differs from `wanted`; an empty text where it does not.

    Tensors may differ by `close` of their largest entry. Lists, tuples and dicts are gone through
    in order, so the first that differs is named: "entry 1 of what it returned".
    """
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or got.keys() != wanted.keys():
            return f"{name} is {_kind(got)}, not a dict of {', '.join(map(str, wanted))}"
        return _first((got[k], wanted[k], f"{k} of {name}", close) for k in wanted)
    if isinstance(wanted, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
            return f"{name} is {_kind(got)}, not {_kind(wanted)}"
        return _first(
            (g, w, f"entry {i} of {name}", close) for i, (g, w) in enumerate(zip(got, wanted))
        )
    if isinstance(wanted, torch.Tensor):
        return _tensors(got, wanted, name, close)
    if isinstance(wanted, float) and isinstance(got, (int, float)):
        near = abs(got - wanted) <= close * max(abs(wanted), 1e-30)
        return "" if near else f"{name} is {got:.6g}, not {wanted:.6g}"
    return "" if got == wanted else f"{name} is {got!r}, not {wanted!r}"


def _first(pairs) -> str:
    return next((said for pair in pairs if (said := difference(*pair))), "")


def _tensors(got, wanted, name: str, close: float) -> str:
    if not isinstance(got, torch.Tensor):
        return f"{name} is {_kind(got)}, not {_kind(wanted)}"
    got = got.detach()
    if got.shape != wanted.shape:
        return f"{name} has shape {list(got.shape)}, not {list(wanted.shape)}"
    if got.dtype != wanted.dtype:
        return f"{name} is {str(got.dtype)[6:]}, not {str(wanted.dtype)[6:]}"
    room = close * max(float(wanted.abs().max()), 1e-30) if wanted.numel() else 0.0
    wrong = ~((got - wanted).abs() <= room)  # so that nan counts as wrong
    count = int(wrong.sum())
    if not count:
        return ""
    place = wrong.reshape(-1).nonzero()[0].item()
    values = got.reshape(-1)[place].item(), wanted.reshape(-1)[place].item()
    index = [int(i) for i in torch.unravel_index(torch.tensor(place), wanted.shape)]
    return (
        f"{name} is {values[0]:.6g} at {index}, not {values[1]:.6g} "
        f"({count:,} of {wanted.numel():,} entries differ)"
    )


def _kind(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
