"""A small run that stands for a large model: which size of its tensors stands for which.

[Note: sizes]
Slow motion sees tensors, and a tensor's sizes do not have names. So each size of the small run
stands for one size of the large model, whichever tensor has it: where a width of 96 stands for
12,288, every dim of 96 entries does. This is unambiguous only if sizes that stand for different
ones differ themselves; a size with two meanings, or with none, is refused when it is met. Known are

    the sizes of the shapes, with (H + 2 G) K (a GPT's q, k and v, where G is H by default), K = D/H
    and, where heads are grouped, the heads of a group; where positions are rotary, K/2
    the batch and the sequence of a forward pass on one rank, their product (the rows of a matrix
    product), and the same for a microbatch
    each of these divided by a number of `shared_by`, for a dim that so many ranks share; where
    these are more than the heads of keys, the q, k and v that each of them has

A size of 1 stands for itself, because broadcasting has it everywhere. Whole numbers are indices:
only their batch and sequence grow.

[Note: flat tensors]
A bucket of gradients or a flat shard has one dim, whose size is a sum over parameters. It is found
among all runs of consecutive parameters, which may go on from the last one to the first; for
shards, among all runs of whole blocks, padded so that `shared_by` ranks share it equally.

Both models have equally many parameters, because each operation of the small run stands for one of
the large model. Memory is that of the small run.
"""

from dataclasses import dataclass, field
from functools import cached_property

from lib.predict.arguments import whole
from lib.predict.shape import GPTShape, MLPShape, ModelShape

_DIMS = ("width", "heads", "hidden", "vocabulary")


@dataclass(frozen=True)
class Larger:
    """Says that runs of the model `small` stand for runs of the model `large`.

    `batch` and `sequence` are pairs, (of the small run, of the large one), as one rank computes
    them in one forward pass; by default samples are as long as the shapes allow. With
    `microbatches` the batch of a rank is divided into so many. `shared_by` lists the numbers of
    ranks that share a dim or a flat shard. `sizes` maps sizes of the small run to what they stand
    for, beside those that are known. `name` is what a caption calls the large model.
    Raises ValueError where the models do not correspond, or two sizes cannot be told apart.
    """

    small: ModelShape
    large: ModelShape
    batch: tuple[int, int]
    sequence: tuple[int, int] | None = None
    microbatches: int = 1
    shared_by: tuple[int, ...] = ()
    sizes: dict[int, int] = field(default_factory=dict, hash=False)
    name: str = ""

    def __post_init__(self):
        kinds = {type(shape) for shape in (self.small, self.large)}
        if len(kinds) > 1 or not kinds <= {MLPShape, GPTShape}:
            raise ValueError(
                f"A {type(self.small).__name__} cannot stand for a {type(self.large).__name__}. "
                "Give two shapes of one kind: two GPTShapes or two MLPShapes."
            )
        names = [[p.name for p in shape.parameters] for shape in (self.small, self.large)]
        if _options(self.small) != _options(self.large):
            raise ValueError(
                "One of the models has grouped heads, rotary positions or dropout that the other "
                "has not, so their operations differ. Give a large shape with the same options."
            )
        if names[0] != names[1]:
            raise ValueError(
                f"The small model has {len(names[0])} parameters in {self.small.blocks} blocks, "
                f"and the large one {len(names[1])} in {self.large.blocks}. Each operation of the "
                "small run stands for one of the large model, so both need the same layers: give "
                "a large shape with as many."
            )
        for pair in (self.batch, self.sequence or (1, 1)):
            for size in pair:
                whole(size, "A size of the batch or the sequence")
        for n in (self.microbatches, *self.shared_by):
            whole(n, "A number of microbatches or of ranks")
        for size in (*self.sizes, *self.sizes.values()):
            whole(size, "A size")
        for size, meanings in _collected(self.dims.items()).items():
            if len(meanings) > 1:
                raise ValueError(_ambiguous(size, meanings))

    @cached_property
    def dims(self) -> dict[str, tuple[int, int]]:
        """Return the named sizes, (of the small run, of the large one)."""
        one, other = self.small, self.large
        if isinstance(one, MLPShape):
            pairs = zip(one.widths, other.widths)
            return {"batch": self.batch, **{f"width {n}": pair for n, pair in enumerate(pairs)}}
        sequence = self.sequence or (one.sequence, other.sequence)
        dims = {"batch": self.batch, "sequence": sequence}
        dims |= {name: (getattr(one, name), getattr(other, name)) for name in _DIMS}
        if one.kv_heads < one.heads:
            dims["kv_heads"] = one.kv_heads, other.kv_heads
        return dims

    def size(self, size: int, index: bool = False) -> int:
        """Return what a dim of `size` entries stands for; `index` if the tensor holds integers."""
        meanings = self._indices.get(size, {size: "itself"}) if index else self._known.get(size, {})
        return self._only(size, meanings, "A dim")

    def shape(self, sizes: tuple[int, ...], index: bool = False) -> tuple[int, ...]:
        """Return the shape that a tensor of these `sizes` stands for. A shape is kept once found.

        Raises ValueError for a size with two meanings or with none.
        """
        larger = self._shapes.get((sizes, index))
        if larger is None:
            if len(sizes) == 1 and not index:
                larger = (self.flat(*sizes),)
            else:
                larger = tuple(self.size(size, index) for size in sizes)
            self._shapes[sizes, index] = larger
        return larger

    def flat(self, size: int) -> int:
        """Return what a tensor of one dim stands for: a known size, a bucket or a flat shard."""
        meanings = self._known.get(size, {}) | self._flats.get(size, {})
        if not meanings and size == len(self.small.parameters):
            return size  # a number for each parameter
        return self._only(size, meanings, "A tensor of one dim")

    def __str__(self) -> str:
        """Name the large model, and the sizes that stand for its sizes."""
        pairs = _changed(self.dims)
        small, large = _written(pairs, 0), _written(pairs, 1)
        kind = "a GPT" if isinstance(self.large, GPTShape) else "an MLP"
        return f"{self.name or kind} with {large} (run with {small})"

    @cached_property
    def _shapes(self) -> dict:
        return {}

    @cached_property
    def _indices(self) -> dict[int, dict[int, str]]:
        """Return the meanings of sizes that tensors of indices have."""
        found = list(self._batches())
        if (sequence := self.dims.get("sequence")) is not None:
            found.append(("sequence", sequence))
            found += [
                (f"{name} · sequence", _product(pair, sequence)) for name, pair in [*found][:-1]
            ]
        return _collected([*found, *((f"size {s}", (s, n)) for s, n in self.sizes.items())])

    @cached_property
    def _known(self) -> dict[int, dict[int, str]]:
        """Return for each size of the small run what it stands for, with the reason."""
        found = dict(self.dims)
        if isinstance(self.small, GPTShape):
            found |= _inside_attention(self.small, self.large)
            for ranks in self.shared_by:
                found |= _of_shared_keys(self.small, self.large, ranks)
        for name, pair in self._batches():
            found[name] = pair
            if "sequence" in self.dims:
                found[f"{name} · sequence"] = _product(pair, self.dims["sequence"])
                found[f"{name} · heads"] = _product(pair, self.dims["heads"])
        shares = [
            (f"{name} ÷ {n}", (small // n, large // n))
            for name, (small, large) in found.items()
            for n in self.shared_by
            if small % n == large % n == 0 and small > n
        ]
        own = [(f"size {size}", pair) for size, pair in zip(self.sizes, self.sizes.items())]
        return _collected([("1", (1, 1)), ("0", (0, 0)), *found.items(), *shares, *own])

    def _batches(self):
        """Yield the batch of a rank and of a microbatch."""
        yield "batch", self.batch
        if self.microbatches > 1:
            if any(size % self.microbatches for size in self.batch):
                raise ValueError(
                    f"Batches of {self.batch[0]} and {self.batch[1]} samples cannot be divided "
                    f"into {self.microbatches} equal microbatches. Choose batches that can."
                )
            yield "microbatch", tuple(size // self.microbatches for size in self.batch)

    @cached_property
    def _flats(self) -> dict[int, dict[int, str]]:
        """Return the sizes of all buckets and flat shards, with what they stand for."""
        both = [[p.numel for p in shape.parameters] for shape in (self.small, self.large)]
        sums_of_runs = [(f"{count} parameters", pair) for count, pair in _runs(list(zip(*both)))]
        blocks: dict[int, tuple[int, int]] = {}
        for parameter, pair in zip(self.small.parameters, zip(*both)):
            sums = blocks.get(parameter.block, (0, 0))
            blocks[parameter.block] = tuple(map(sum, zip(sums, pair)))
        for count, pair in _runs(list(blocks.values())):
            for n in self.shared_by:
                share = tuple(-(-numel // n) for numel in pair)
                what = f"{count} blocks, shared by {n} ranks"
                sums_of_runs += [(what, share), (f"{what}, padded", _product(share, (n, n)))]
        return _collected(sums_of_runs)

    def _only(self, size: int, meanings: dict[int, str], what: str) -> int:
        if len(meanings) == 1:
            return next(iter(meanings))
        if meanings:
            raise ValueError(_ambiguous(size, meanings))
        known = ", ".join(f"{name} {pair[0]:,}" for name, pair in self.dims.items())
        raise ValueError(
            f"{what} of {size:,} entries is no size of the small run, so it is not known what it "
            f"stands for. Known are {known}, what follows from them, and runs of parameters. Say "
            f"it with Larger(..., sizes={{{size}: ...}})."
        )


def _options(shape: ModelShape) -> tuple:
    """Return the options of a GPT that decide which operations it performs."""
    if not isinstance(shape, GPTShape):
        return ()
    grouped = (shape.kv_heads < shape.heads) + (1 < shape.kv_heads < shape.heads)
    return grouped, shape.positions, shape.dropout > 0


def _inside_attention(small: GPTShape, large: GPTShape) -> dict[str, tuple[int, int]]:
    """Return the sizes that only attention's tensors have, (of the small run, of the large one)."""
    both = small, large
    groups = tuple(shape.heads // shape.kv_heads for shape in both)
    pairs = {
        "q, k and v together": tuple(shape.qkv_width for shape in both),
        "a head's size": tuple(shape.head_size for shape in both),
        "q, k and v": tuple(n + 2 for n in groups),
    }
    if groups[0] > 1:
        pairs["heads of a group"] = groups
    if small.positions == "rotary":
        pairs["half a head's size"] = tuple(shape.head_size // 2 for shape in both)
    return pairs


def _of_shared_keys(small: GPTShape, large: GPTShape, ranks: int) -> dict[str, tuple[int, int]]:
    """Return the sizes of a rank's q, k and v where several of `ranks` have the same k and v."""
    both = small, large
    if any(ranks <= shape.kv_heads or shape.heads % ranks for shape in both):
        return {}
    parts = tuple(shape.heads // ranks + 2 for shape in both)
    sizes = tuple(shape.head_size for shape in both)
    return {
        f"q, k and v on one of {ranks} ranks": parts,
        f"q, k and v together on one of {ranks} ranks": _product(parts, sizes),
        "k and v of one head": _product((2, 2), sizes),
    }


def _collected(named) -> dict[int, dict[int, str]]:
    """Collect what each size stands for; a size of 1 can stand for nothing else."""
    found: dict[int, dict[int, str]] = {}
    for name, (small, large) in named:
        if small == 1 != large:
            raise ValueError(
                f"The {name} of the small run is 1 and stands for {large:,}, but a size of 1 "
                f"always stands for itself. Take a {name} of at least 2."
            )
        found.setdefault(small, {}).setdefault(large, name)
    return found


def _runs(pairs: list[tuple[int, int]]):
    """Yield (length, sums) of each run of consecutive pairs, from the last on to the first too."""
    for begin in range(len(pairs)):
        sums = 0, 0
        for length in range(1, len(pairs) + (begin == 0)):
            pair = pairs[(begin + length - 1) % len(pairs)]
            sums = sums[0] + pair[0], sums[1] + pair[1]
            yield length, sums


def _product(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] * other[0], one[1] * other[1]


def _changed(dims: dict) -> dict:
    """Return the dims that differ; the widths of an MLP are one entry where they are equal."""
    widths = {pair for name, pair in dims.items() if name.startswith("width ")}
    if len(widths) == 1:
        dims = {"width": widths.pop(), "batch": dims["batch"]}
    return {
        name: pair
        for name, pair in dims.items()
        if pair[0] != pair[1] or name.startswith("width ")  # the widths are named together
    }


def _written(pairs: dict, which: int) -> str:
    """Write the sizes of the small model (0) or the large one (1), with an MLP's widths as one."""
    sizes = [f"{name} {pair[which]:,}" for name, pair in pairs.items() if name[:6] != "width "]
    widths = [pair[which] for name, pair in pairs.items() if name[:6] == "width "]
    if len(set(widths)) == 1:
        sizes.append(f"{len(widths)} widths of {widths[0]:,}")
    elif widths:
        sizes.append(
            f"widths {', '.join(f'{width:,}' for width in widths[:-1])} and {widths[-1]:,}"
        )
    return ", ".join(sizes)


def _ambiguous(size: int, meanings: dict[int, str]) -> str:
    options = " or for ".join(f"{large:,} ({name})" for large, name in meanings.items())
    return (
        f"A size of {size:,} entries stands for {options}: the two cannot be told apart. Choose "
        "sizes for the small run that differ."
    )
