"""Describes in words where two results first differ."""

import torch


def difference(got, expected, name: str = "what it returned", close: float = 1e-5) -> str:
    """Return a text that says where `got` first differs from `expected`, or an empty text.

    Tensors may differ by `close` times their largest entry. Lists, tuples and dicts are compared in
    order, and the text names the first entry that differs: "entry 1 of what it returned".
    """
    if isinstance(expected, dict):
        if not isinstance(got, dict) or got.keys() != expected.keys():
            return f"{name} is {_kind(got)}, not a dict of {', '.join(map(str, expected))}"
        return _first((got[k], expected[k], f"{k} of {name}", close) for k in expected)
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return f"{name} is {_kind(got)}, not {_kind(expected)}"
        return _first(
            (g, w, f"entry {i} of {name}", close) for i, (g, w) in enumerate(zip(got, expected))
        )
    if isinstance(expected, torch.Tensor):
        return _tensors(got, expected, name, close)
    if isinstance(expected, float) and isinstance(got, (int, float)):
        near = abs(got - expected) <= close * max(abs(expected), 1e-30)
        return "" if near else f"{name} is {got:.6g}, not {expected:.6g}"
    return "" if got == expected else f"{name} is {got!r}, not {expected!r}"


def _first(pairs) -> str:
    return next((text for pair in pairs if (text := difference(*pair))), "")


def _tensors(got, expected, name: str, close: float) -> str:
    if not isinstance(got, torch.Tensor):
        return f"{name} is {_kind(got)}, not {_kind(expected)}"
    got, expected = got.detach().cpu(), expected.cpu()
    if got.shape != expected.shape:
        return f"{name} has shape {list(got.shape)}, not {list(expected.shape)}"
    if got.dtype != expected.dtype:
        return f"{name} is {str(got.dtype)[6:]}, not {str(expected.dtype)[6:]}"
    tolerance = close * max(float(expected.abs().max()), 1e-30) if expected.numel() else 0.0
    wrong = ~((got - expected).abs() <= tolerance)  # written so that nan counts as wrong
    count = int(wrong.sum())
    if not count:
        return ""
    first = wrong.reshape(-1).nonzero()[0].item()
    values = got.reshape(-1)[first].item(), expected.reshape(-1)[first].item()
    if not expected.dim():
        return f"{name} is {values[0]:.6g}, not {values[1]:.6g}"
    index = [int(i) for i in torch.unravel_index(torch.tensor(first, device="cpu"), expected.shape)]
    return (
        f"{name} is {values[0]:.6g} at {index}, not {values[1]:.6g} "
        f"({count:,} of {expected.numel():,} entries differ)"
    )


def _kind(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
