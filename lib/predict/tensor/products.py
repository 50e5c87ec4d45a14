"""A product of two matrices on ranks, step by step: who holds, sends, multiplies and adds what.

C = A·B    A [M, K] · B [K, N] -> C [M, N]
"""

from collections.abc import Mapping

from lib.predict.tensor.placement import Mesh, Split
from lib.predict.tensor.tiles import Product, ProductStep, begin

GRIDS = {  # how A and B are split before the first step
    "2d": (Split("row", "column"), Split("row", "column")),
    "2.5d": (Split("depth row", "column"), Split("row", "column")),
    "3d": (Split("x y", "z"), Split("z", "y x")),
}
KINDS = "column", "row", *GRIDS


def product_steps(kind: str, m: int, k: int, n: int, ranks: int) -> Product:
    """Plan A [M, K] · B [K, N] on `ranks` ranks, as one of KINDS.

    column: A [M, K] · B [K, N/tp] -> C [M, N/tp].
    row: A [M, K/tp] · B [K/tp, N] -> C [M, N] +tp, then an all_reduce over tp.
    2d: SUMMA, A [M/row, K/column] · B [K/row, N/column] -> C [M/row, N/column] on q×q ranks.
    2.5d: the same with M/(depth·row), on d squares of q×q that share B, with the smallest d
    of at least 2.
    3d: A [M/(x·y), K/z] · B [K/z, N/(y·x)] -> C [M/(x·z), N/y] on q×q×q ranks.

    Raises ValueError for another kind, a number of ranks that is no such grid, and sizes that the
    ranks cannot share equally. Source: van de Geijn and Watts 1997 (SUMMA), Wang et al. 2021, arXiv
    2105.14500 (2.5D), Agarwal et al. 1995 (3D).
    """
    mesh = Mesh.of_kind(kind, ranks)
    if kind in ("column", "row"):
        a = (None, "tp") if kind == "row" else (None, None)
        b = ("tp", None) if kind == "row" else (None, "tp")
        return split_steps(a, b, mesh.axes, m, k, n)
    if kind == "3d":
        return _cube(mesh, m, k, n)
    return _summa(begin(mesh, m, k, n, *GRIDS[kind]))


_NEEDS_K = (
    "Each rank along {} has a piece of {} and a piece of {}, but an entry of C needs all of K."
)


def split_steps(a, b, mesh: Mapping[str, int], m: int, k: int, n: int) -> Product:
    """Plan A·B where A and B are split as given: each a pair of axes, or None where not split.

    `mesh` gives the ranks along each axis, {"tp": 4}. Where the pieces of a rank do not fit, a step
    before the product makes them fit; where there is a choice, the matrix of fewer bytes moves.
    Raises ValueError where a split is impossible.
    """
    plan = begin(Mesh(dict(mesh)), m, k, n, Split(*a), Split(*b))
    _meet_in_k(plan)
    _fit_in_c(plan)
    (rows, _), (_, columns) = plan.splits["A"].dims, plan.splits["B"].dims
    pending = plan.splits["A"].dims[1]
    plan.splits["C"] = Split(rows, columns, pending)
    plan.multiply()
    if pending:
        plan.reduce("all_reduce", plan.splits["C"].done())
    return plan


def _meet_in_k(plan: Product) -> None:
    """Make K of A and K of B lie alike: slice where it is free, gather where it is not."""
    (a0, a1), (b0, b1) = plan.splits["A"].dims, plan.splits["B"].dims
    if a1 == b0:
        return
    if a1 and b0:
        plan.reasons.append(
            f"K of A is split along {a1[0]} and K of B along {b0[0]}, so ranks have columns of A "
            "and rows of B that do not belong together."
        )
        both = (a1 == b1) == (b0 == a0)
        is_a = plan.held("A") <= plan.held("B") if both else a1 == b1
        plan.gather("A", 1) if is_a else plan.gather("B", 0)
    elif a1 and a1 == b1:
        plan.reasons.append(_NEEDS_K.format(a1[0], "K of A", "N of B"))
        plan.gather("A", 1)
    elif b0 and b0 == a0:
        plan.reasons.append(_NEEDS_K.format(b0[0], "M of A", "K of B"))
        plan.gather("B", 0)
    elif a1:
        plan.slice("B", Split(a1, b1))
    else:
        plan.slice("A", Split(a0, b0))
    _meet_in_k(plan)


def _fit_in_c(plan: Product) -> None:
    """Free one dim of C where one axis would split both: gather the matrix with fewer bytes."""
    (rows, _), (_, columns) = plan.splits["A"].dims, plan.splits["B"].dims
    if not rows or rows != columns:
        return
    plan.reasons.append(
        f"Axis {rows[0]} splits M and N, so each rank could compute one tile on the diagonal of C, "
        "and nobody could compute the tiles beside it."
    )
    is_a = plan.held("A") <= plan.held("B")
    plan.gather("A", 0) if is_a else plan.gather("B", 1)


def _summa(plan: Product) -> Product:
    """Add SUMMA's steps: for each piece of K, two broadcasts and a product of what they brought."""
    mesh, cuts = plan.mesh, plan.cuts
    rows, columns = plan.splits["A"].dims[0], plan.splits["B"].dims[1]
    plan.splits["C"] = Split(rows, columns)
    for k in range(cuts["K"]):
        came = [
            *plan.broadcast("A", "column", k, "one column of A's tiles goes along the rows"),
            *plan.broadcast("B", "row", k, "one row of B's tiles goes along the columns"),
        ]
        products = [
            (rank, i, k, j) for rank in mesh.ranks
            for _, i, j in sorted(plan.tiles("C", plan.splits["C"], rank))
        ]  # fmt: skip
        freed = tuple((move.destination, move.tile) for move in came)
        text = f"multiply and add to C ({k + 1} of {cuts['K']}), then free what came"
        plan.steps.append(ProductStep("multiply", "", "C", text, (), tuple(products), freed))
    return plan


def _cube(mesh: Mesh, m: int, k: int, n: int) -> Product:
    """Plan a 3D product: each matrix moves once, along an axis of its own."""
    final = Split("x z", "y")
    plan = begin(mesh, m, k, n, *GRIDS["3d"], final)
    plan.gather("A", 0)
    plan.gather("B", 1)
    plan.splits["C"] = Split("x", "y", "z")
    plan.multiply()
    plan.reduce("reduce_scatter", final)
    return plan
