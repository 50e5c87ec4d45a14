"""A product of two split matrices, step by step: who holds which tile, who sends it to whom."""

import re
from collections.abc import Iterable
from fractions import Fraction
from itertools import product

from lib.draw.parts import captions
from lib.draw.parts.picture import Picture
from lib.predict.arguments import whole
from lib.predict.tensor.placement import LETTERS, Mesh, Split
from lib.predict.tensor.products import GRIDS, KINDS, product_steps, split_steps
from lib.predict.tensor.tiles import Product, Tile

_MOST = 8  # ranks that a picture can tell apart by colour
_GRIDS = {
    "2d": "SUMMA goes through K piece by piece: two broadcasts bring each rank the tiles that it "
    "multiplies next, so beside its own it never holds more than one tile of A and one of B.",
    "2.5d": "Each layer of the grid has its own rows of A and a copy of B, and does SUMMA alone.",
    "3d": "Each matrix moves once, along an axis of its own: A and B are gathered, and the parts "
    "of C are added.",
}
_USUAL = "A [M, K] · B [K, N] -> C [M, N]"
_MATRIX = r"(\S+) \[(\S+), (\S+)\]"
_PRODUCT = re.compile(f"{_MATRIX} · {_MATRIX} -> {_MATRIX}")
_NAME = re.compile(r"(?<!\w)[ABCMKN](?!\w)")


def shards(
    kind: str = "column", m: int = 2048, k: int = 4096, n: int = 16384, *, ranks: int = 4,
    itemsize: int = 2, step: int = 0, caption: str = "", names: str = _USUAL,
) -> Picture:  # fmt: skip
    """Draw A [M, K] · B [K, N] -> C [M, N] on ranks, and let the reader choose other splits.

    `kind` is "column", "row", "2d" (SUMMA), "2.5d" or "3d"; the splits of A and B can be changed on
    a line of `ranks` ranks and on a square of four. Bytes are those of elements of `itemsize`
    bytes; the still is drawn after `step` steps. `names` gives matrices and dims other names, in a
    product that is written as the one above; grids with an axis of such a name are left out.
    """
    itemsize, step = whole(itemsize, "itemsize"), whole(step, "step", 0)
    if kind not in KINDS:
        raise ValueError(
            f"No product is called {kind!r}. Choose one of {', '.join(map(repr, KINDS))}."
        )
    if not 2 <= whole(ranks, "ranks") <= _MOST:
        raise ValueError(f"A line of {ranks} ranks cannot be drawn: 2 to {_MOST} ranks can be.")
    called = _called(names)
    line, square = {"tp": int(ranks)}, {"row": 2, "column": 2}
    ways = {"line": _chosen(line, m, k, n, itemsize), "square": _chosen(square, m, k, n, itemsize)}
    for grid, words in _GRIDS.items():
        on = 4 if grid == "2d" else 8
        try:
            ways[grid] = {"|": _product(product_steps(grid, m, k, n, on), itemsize, words)}
        except ValueError as wrong:
            ways[grid] = {"|": _impossible(str(wrong), Mesh.of_kind(grid, on), *GRIDS[grid])}
        if taken := set(Mesh.of_kind(grid, on).axes) & set(called.values()):
            del ways[grid]
            if grid == kind:
                raise ValueError(f"{taken.pop()!r} is the name of an axis of {kind!r} already.")
    words = {"line": f"{ranks} in a line", "square": "2×2", "2d": "2×2, SUMMA",
             "2.5d": "2×2×2, 2.5D", "3d": "2×2×2, 3D"}  # fmt: skip
    a, b = {"column": ("", " tp"), "row": (" tp", "tp ")}.get(kind, ("", ""))
    start = {"way": kind if kind in _GRIDS else "line", "a": a or " ", "b": b or " ", "at": step}
    ways = _renamed(ways, called)
    sizes = _renamed(f"M = {m:,}, K = {k:,}, N = {n:,}", called)
    data = {
        "ways": [[way, words[way]] for way in ways],
        "splits": {"line": _options(line), "square": _options(square)},
        "products": ways, "start": start,
        "names": [called[matrix] for matrix in "ABC"], "inner": called["K"],
        "caption": captions.joined(
            f"Predicted: bytes counted from the tiles, for {sizes} and elements of {itemsize} "
            f"byte{'s' * (itemsize != 1)}; an all_reduce counts as a ring's. Nothing was run, and "
            "the matrices are not drawn to scale.", caption,
        ),
    }  # fmt: skip
    chosen = ways[start["way"]]["|" if kind in _GRIDS else f"{start['a']}|{start['b']}"]
    if step > len(chosen["steps"]):
        raise ValueError(
            f"This product has {len(chosen['steps'])} steps, so there is no step {step}."
        )
    return Picture(chosen["summary"], ("shards", data))


def _called(names: str) -> dict[str, str]:
    """Return how A, B, C, M, K and N are called in a product that is written as the usual one."""
    found = _PRODUCT.fullmatch(names)
    if found:
        a, m, k, b, also_k, n, c, also_m, also_n = found.groups()
        called = dict(zip("ABCMKN", (a, b, c, m, k, n)))
        if (also_m, also_k, also_n) == (m, k, n) and len(set(called.values())) == len(called):
            return called
    raise ValueError(
        f"Name the matrices and dims of a product as in {_USUAL!r}, each in its own way: {names!r} "
        "is no such product."
    )


def _renamed(given, called: dict[str, str]):
    """Return a text, or all texts of lists and dicts, with other names of matrices and dims."""
    if isinstance(given, str):
        return _NAME.sub(lambda found: called[found[0]], given)
    if isinstance(given, dict):
        return {key: _renamed(value, called) for key, value in given.items()}
    return [_renamed(one, called) for one in given] if isinstance(given, list) else given


def _options(mesh: dict[str, int]) -> list[list[str]]:
    """Return each split of a matrix that can be chosen: its key, and words for it."""
    words = []
    for rows, columns in product(("", *mesh), repeat=2):
        parts = [f"dim 0 by {rows}"] * bool(rows) + [f"dim 1 by {columns}"] * bool(columns)
        same = f"both dims by {rows}" if rows and rows == columns else ""
        words.append([f"{rows} {columns}", same or ", ".join(parts) or "not split"])
    return sorted(words, key=lambda one: (len(one[0].split()), one[0][0] == " "))


def _chosen(mesh: dict[str, int], m: int, k: int, n: int, itemsize: int) -> dict:
    """Return the product of every pair of splits on a mesh, or why it is impossible."""
    products, keys = {}, [key for key, _ in _options(mesh)]
    for a, b in product(keys, repeat=2):
        pairs = [tuple(axis or None for axis in key.split(" ")) for key in (a, b)]
        try:
            plan = split_steps(*pairs, mesh, m, k, n)
        except ValueError as wrong:
            splits = [Split(*pair) for pair in pairs]
            products[f"{a}|{b}"] = _impossible(str(wrong), Mesh(mesh), *splits)
        else:
            products[f"{a}|{b}"] = _product(plan, itemsize, _verdict(plan))
    return products


def _verdict(plan: Product) -> str:
    """Return which collectives a chosen split needs, and why."""
    words = list(plan.reasons)
    before = [step for step in plan.steps if step.op == "all_gather"]
    if before:
        moved = " and ".join(f"an all_gather of {step.matrix} over {step.axis}" for step in before)
        words.append(f"So {moved} must come first.")
    for step in plan.steps:
        if step.op == "slice":
            words.append(f"{step.matrix} is whole where the other matrix is split, so each rank "
                         "uses only its part of it.")  # fmt: skip
    if plan.steps[-1].op == "all_reduce":
        axis = plan.steps[-1].axis
        words.append(f"Each rank has a part of every sum over K, so an all_reduce over {axis} must "
                     "add the parts.")  # fmt: skip
    elif not before:
        words.append("No collective is needed.")
    share = Fraction(plan.work()).limit_denominator(64)
    whole_of_it = "Each rank multiplies everything, so nothing is saved."
    words.append(whole_of_it if share == 1 else f"Each rank does {share} of the multiplications.")
    return " ".join(words)


def _impossible(why: str, mesh: Mesh, *splits: Split) -> dict:
    """Return what is drawn of a split that cannot be: A and B, with the tiles that ranks hold."""
    grids, lines = [], []
    for matrix, split in zip("AB", splits):
        cuts = [mesh.parts(axes) for axes in split.dims]
        held = {rank: set(product(*(mesh.share(cut, axes, rank)
                                    for cut, axes in zip(cuts, split.dims))))
                for rank in mesh.ranks}  # fmt: skip
        grids.append([[[r for r in mesh.ranks if (i, j) in held[r]] for j in range(cuts[1])]
                      for i in range(cuts[0])])  # fmt: skip
        lines.append(split.line(matrix))
    text = f"Impossible: {why}"
    summary = "\n".join([f"{lines[0]} · {lines[1]}", f"  {text}"])
    return {"lines": [*lines, "C: impossible"], "grids": [*grids, [[[]]]], "verdict": text,
            "steps": [], "states": [], "ranks": [], "axes": [], "summary": summary}  # fmt: skip


def _product(plan: Product, itemsize: int, verdict: str) -> dict:
    """Return all that is drawn of a product."""
    splits = {**plan.start, "C": plan.splits["C"]}
    lines = [split.line(matrix) for matrix, split in splits.items()]
    grids = []
    for matrix, split in splits.items():
        held = {rank: plan.tiles(matrix, split, rank) for rank in plan.mesh.ranks}
        rows, columns = (plan.cuts[letter] for letter in LETTERS[matrix])
        grids.append([[[r for r in held if (matrix, i, j) in held[r]] for j in range(columns)]
                      for i in range(rows)])  # fmt: skip
    steps = [
        {"op": one.op, "text": one.text, "sent": itemsize * plan.sent(one),
         "who": _who(plan, one.moves),
         "moves": [["ABC".index(move.tile[0]), *move.tile[1:], *move[1:]] for move in one.moves]}
        for one in plan.steps
    ]  # fmt: skip
    states = [[_held(plan, tiles, itemsize) for tiles in state] for state in plan.states()]
    title = f"{lines[0]} · {lines[1]} -> {lines[2]} on {len(plan.mesh.ranks)} ranks"
    told = [f"  {number}. {one['text']}" + f" ({one['who']})" * bool(one["who"])
            for number, one in enumerate(steps, 1)]  # fmt: skip
    total = sum(one["sent"] for one in steps)
    last = f"  sent by all ranks: {total:,} bytes"
    return {
        "lines": lines, "grids": grids, "verdict": verdict, "steps": steps, "states": states,
        "axes": list(plan.mesh.axes), "pieces": plan.cuts["K"],
        "ranks": [list(plan.mesh.coordinates(rank).values()) for rank in plan.mesh.ranks],
        "summary": "\n".join([title, f"  {verdict}", *told, last]),
    }  # fmt: skip


def _held(plan: Product, tiles: dict, itemsize: int) -> dict:
    """Return the bytes that a rank holds, and its tiles: whence they came, or of how many parts."""
    shown = [["ABC".index(tile[0]), *tile[1:], value if tile[0] != "C" else len(value)]
             for tile, value in sorted(tiles.items())]  # fmt: skip
    return {"bytes": itemsize * sum(plan.numel(tile[0]) for tile in tiles), "tiles": shown}


def _who(plan: Product, moves: Iterable) -> str:
    """Return who sends which tiles to whom: "0 → 1, 2, 3: A[:, 0]"."""
    receivers: dict[tuple[int, Tile], list[int]] = {}
    for move in moves:
        receivers.setdefault((move.source, move.tile), []).append(move.destination)
    tiles: dict[tuple, list[str]] = {}
    for (source, tile), to in sorted(receivers.items()):
        tiles.setdefault((source, tuple(sorted(to))), []).append(_name(plan, tile))
    return "; ".join(
        f"{source} → {', '.join(map(str, to))}: {', '.join(names)}"
        for (source, to), names in tiles.items()
    )


def _name(plan: Product, tile: Tile) -> str:
    """Return a tile's name: "A[0, 1]", "B[:, 2]" where dim 0 is not cut, "C" where none is."""
    matrix, *place = tile
    cuts = [plan.cuts[letter] for letter in LETTERS[matrix]]
    if max(cuts) == 1:
        return matrix
    return f"{matrix}[{', '.join(str(i) if cut > 1 else ':' for i, cut in zip(place, cuts))}]"
