"""A model of PyTorch's caching allocator: how it rounds, cuts and joins the memory of a GPU.

[Note: the caching allocator]
Asking the driver for memory is slow, so PyTorch asks for large pieces (segments) and cuts them into
blocks. A tensor's bytes are rounded up to a multiple of 512. Up to 1 MiB it comes from the pool of
small blocks, whose segments have 2 MiB; otherwise from the pool of large blocks, whose segments
have 20 MiB for tensors below 10 MiB, and for larger ones their own size, rounded up to 2 MiB. The
smallest free block that is large enough is taken (best fit; of equal ones the lowest). What is left
of it becomes a block of its own, in the small pool from 512 bytes on, in the large pool only above
1 MiB. A freed block is joined with its free neighbours in the segment, and kept. Only where the
driver refuses are segments given back, those that no tensor touches, and the driver is asked again.

Source: the comments and constants of pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp and
c10/core/AllocatorConfig.h. Left out: several streams, expandable segments, max_split_size_mb. The
driver decides where a segment lies; here it is the lowest place that is free.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from lib.predict.arguments import whole

MIB = 2**20
MIN_BLOCK = 512  # bytes: every size is a multiple of it
SMALL = 1 * MIB  # the largest size of the small pool
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB  # for sizes below MIN_LARGE
MIN_LARGE = 10 * MIB  # from here on a segment holds one size
ROUND_LARGE = 2 * MIB  # and is rounded up to a multiple of this
FITS = ("best", "first")


class OutOfMemory(MemoryError):
    """The device has too little memory, or too little of it in one piece."""


@dataclass(eq=False)
class Block:
    """A part of a segment: free, or held by one tensor of `requested` bytes."""

    address: int
    size: int
    segment: "Segment"
    requested: int = 0
    free: bool = True


@dataclass(eq=False)
class Segment:
    """A piece of memory that the driver gave; its blocks lie one after the other, without gaps."""

    address: int
    size: int
    pool: str  # "small", "large" or "arena"
    blocks: list[Block] = field(default_factory=list, repr=False)

    @property
    def end(self) -> int:
        """Return the first address behind the segment."""
        return self.address + self.size


def rounded(nbytes: int) -> int:
    """Return the bytes of a block for a tensor of `nbytes`: the next multiple of 512, at least one.

    0 bytes need no block.
    """
    nbytes = whole(nbytes, "nbytes", 0)
    return -(-nbytes // MIN_BLOCK) * MIN_BLOCK


def segment_size(size: int) -> int:
    """Return the bytes that the driver is asked for when no free block has `size` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE


class CachingAllocator:
    """Gives and takes back blocks of a device with `capacity` bytes (None: as many as are asked).

    `fit` is "best", as PyTorch chooses a free block, or "first", the one with the lowest address.
    """

    def __init__(self, capacity: int | None = None, fit: str = "best"):
        if fit not in FITS:
            raise ValueError(f"fit must be one of {', '.join(FITS)}, not {fit!r}.")
        self.capacity = None if capacity is None else whole(capacity, "capacity")
        self.fit = fit
        self.segments: list[Segment] = []  # by address
        self.allocated = self.requested = self.reserved = 0
        self.retries = 0  # how often the driver refused and segments were given back
        self._free: dict[str, list[tuple[int, int, Block]]] = {}  # (size, address, block), sorted

    @property
    def free_bytes(self) -> int:
        """Return the bytes of all free blocks, without those that an arena has left."""
        left = sum(size for size, _, _ in self._free.get("arena", ()))
        return self.reserved - self.allocated - left

    @property
    def largest_free(self) -> int:
        """Return the bytes of the largest free block: no larger tensor fits without a new segment.

        It is the largest of both pools; what an arena has left does not count.
        """
        return max(self._largest("small"), self._largest("large"))

    @property
    def inactive_split(self) -> int:
        """Return the free bytes in segments that tensors still use, which cannot be given back.

        PyTorch's memory_stats have the same number under this name; an arena does not count.
        """
        free = (block for pool in ("small", "large") for *_, block in self._free.get(pool, ()))
        return sum(block.size for block in free if block.size < block.segment.size)

    def reserve(self, nbytes: int, pool: str = "arena") -> Segment:
        """Ask the driver for a segment before anything needs it, such as an arena."""
        return self._new_segment(-(-whole(nbytes, "nbytes") // ROUND_LARGE) * ROUND_LARGE, pool)

    def allocate(self, nbytes: int, pool: str = "") -> Block:
        """Return a block for `nbytes` bytes; of the arena where `pool` is "arena".

        Raises OutOfMemory where no block is large enough and the device has no room for another.
        """
        size = rounded(whole(nbytes, "nbytes"))
        pool = pool or ("small" if size <= SMALL else "large")
        block = self._take(size, pool)
        if block is None and pool == "arena":
            raise OutOfMemory(
                f"The arena has no free block of {size:,} bytes: the largest has "
                f"{self._largest(pool):,}. Reserve a larger one."
            )
        if block is None:
            block = self._new_segment(segment_size(size), pool).blocks[0]
            self._remove(block)
        self._split(block, size)
        block.requested, block.free = nbytes, False
        self.requested += nbytes
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Take a block back and join it with its free neighbours; its segment is kept."""
        if block.free:
            raise ValueError(f"The block at address {block.address:,} is free already.")
        self.requested -= block.requested
        self.allocated -= block.size
        block.requested, block.free = 0, True
        blocks = block.segment.blocks
        place = blocks.index(block)
        for neighbour in (blocks[place + 1 : place + 2], blocks[max(place - 1, 0) : place]):
            if neighbour and neighbour[0].free:
                self._remove(neighbour[0])
                blocks.remove(neighbour[0])
                block.address = min(block.address, neighbour[0].address)
                block.size += neighbour[0].size
        self._add(block)

    def release(self) -> int:
        """Give back all segments that are free from end to end (torch.cuda.empty_cache).

        Returns their bytes. An arena stays.
        """
        whole_ones = [s for s in self.segments if len(s.blocks) == 1 and s.blocks[0].free]
        whole_ones = [segment for segment in whole_ones if segment.pool != "arena"]
        for segment in whole_ones:
            self._remove(segment.blocks[0])
            self.segments.remove(segment)
            self.reserved -= segment.size
        return sum(segment.size for segment in whole_ones)

    # Free blocks.

    def _largest(self, pool: str) -> int:
        return self._free[pool][-1][0] if self._free.get(pool) else 0

    def _take(self, size: int, pool: str) -> Block | None:
        """Remove a free block of at least `size` bytes from its pool, and return it."""
        blocks = self._free.get(pool, [])
        place = bisect_left(blocks, (size, -1))
        if place == len(blocks):
            return None
        if self.fit == "first":
            place = min(range(place, len(blocks)), key=lambda n: blocks[n][1])
        return blocks.pop(place)[2]

    def _split(self, block: Block, size: int) -> None:
        """Cut off what a block has more than `size`, where its pool cuts off so little."""
        rest, small = block.size - size, block.segment.pool != "large"
        if rest < MIN_BLOCK or (not small and rest <= SMALL):
            return
        remainder = Block(block.address + size, rest, block.segment)
        blocks = block.segment.blocks
        blocks.insert(blocks.index(block) + 1, remainder)
        block.size = size
        self._add(remainder)

    def _add(self, block: Block) -> None:
        insort(self._free.setdefault(block.segment.pool, []), (block.size, block.address, block))

    def _remove(self, block: Block) -> None:
        blocks = self._free[block.segment.pool]
        del blocks[bisect_left(blocks, (block.size, block.address))]

    # Segments.

    def _new_segment(self, size: int, pool: str) -> Segment:
        if not self._fits(size):
            self.retries += 1
            self.release()
        if not self._fits(size):
            raise OutOfMemory(
                f"A segment of {size:,} bytes does not fit: {self.reserved:,} of "
                f"{self.capacity:,} bytes are reserved. Of these {self.free_bytes:,} are free, the "
                f"largest block with {self.largest_free:,}, in segments that tensors still use. "
                "Choose a smaller batch, or keep long-lived tensors in an arena."
            )
        ends = [0, *(other.end for other in self.segments)]
        gaps = (other.address - end for other, end in zip(self.segments, ends))
        place = next((n for n, gap in enumerate(gaps) if gap >= size), len(self.segments))
        address = ends[place]
        segment = Segment(address, size, pool)
        segment.blocks = [Block(address, size, segment)]
        self.segments.insert(place, segment)
        self.reserved += size
        self._add(segment.blocks[0])
        return segment

    def _fits(self, size: int) -> bool:
        return self.capacity is None or self.reserved + size <= self.capacity
