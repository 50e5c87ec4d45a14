"""A part of fsdp.py: when units are gathered, prefetched, freed and reduced.

[Note: prefetch]
While a unit computes, the gathers of the next `prefetch` units are under way; so at most
1 + `prefetch` units are whole at a time, beside the root. With offload, the shard of the unit after
these is copied to the device meanwhile. Forward expects the order of the last
forward, and in the first one that of registration. Backward goes the same way back.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.autograd import Variable

from lib.parallel.sharded import refusals


class Run:
    """One run of a unit in forward, which backward passes through again."""

    def __init__(self, unit, before: "Run | None"):
        self.unit, self.before = unit, before


class Schedule:
    """Follows a step from hook to hook; `root` is the first of `units`."""

    def __init__(self, units: list, prefetch: int, group, device):
        self.units, self.prefetch, self.group, self.device = units, prefetch, group, device
        self.expected, self.order = list(units[1:]), []
        self.last: Run | None = None
        self.sync, self.queued = True, False
        self.reducing: tuple | None = None  # a flat buffer and its reduce_scatter under way
        self.averaging: list = []  # on a mesh: buffers and the all_reduces of their shards

    # Forward.

    def begin(self) -> None:
        """Start a forward: what an earlier one left whole is old by now."""
        if self.queued:  # the last backward failed
            self.reset()
        self.drop()
        self.order = []

    def enter(self, unit) -> None:
        """Gather a unit that is about to run, and launch the gathers of those after it."""
        if unit is not self.units[0]:
            self._follow(unit)
        unit.gather()
        unit.wait()
        if self.prefetch:
            first, last = len(self.order), len(self.order) + self.prefetch
            for following in self.expected[first:last]:
                following.gather()
            for following in self.expected[last : last + 1]:
                following.fetch()

    def _follow(self, unit) -> None:
        """Note which unit runs; where it is another one than expected, compare with all ranks."""
        position = len(self.order)
        self.order.append(unit)
        expected = self.expected[position] if position < len(self.expected) else None
        if unit is expected:
            return
        for other in self.units[1:]:
            if other is not unit:
                other.free()  # what was prefetched may never run
        own = torch.tensor([self.units.index(unit)], device=self.device)
        numbers = own.new_empty(dist.get_world_size(self.group))
        try:
            dist.all_gather_single(numbers, own, group=self.group)
        except RuntimeError as error:  # others did something else: they run what was expected
            name = expected.name if expected else "no other unit"
            raise RuntimeError(refusals.other_order(name, unit.name, dist.get_rank())) from error
        for rank, number in enumerate(numbers.tolist()):
            if number != numbers[0]:
                first, other = self.units[numbers[0]].name, self.units[number].name
                raise RuntimeError(refusals.other_order(first, other, rank))
        self.expected = [*self.order, *self.expected[position + 1 :]]

    def leave(self, unit) -> Run | None:
        """Free a unit that has run, and return the run for backward (None where there is none)."""
        run = None
        if torch.is_grad_enabled():
            run = self.last = Run(unit, self.last)
        if run is None or unit.after_forward is True:
            unit.free()
        elif unit.after_forward is not False:
            unit.free(small=True)
        return run

    def end_forward(self) -> None:
        """Keep the order for the next forward, and free what was prefetched in vain."""
        self.expected = self.order
        if not torch.is_grad_enabled():
            self.drop()

    # Backward.

    def enter_backward(self, run: Run) -> None:
        """Gather the unit of a run whose backward begins, and those before it."""
        self.await_end()
        run.unit.active += 1
        run.unit.gather()
        run.unit.wait()
        ahead, before = 0, run.before
        while before is not None and ahead <= self.prefetch and self.prefetch:
            if before.unit is not run.unit and before.unit is not self.units[0]:
                before.unit.gather() if ahead < self.prefetch else before.unit.fetch()
                ahead += 1
            before = before.before

    def leave_backward(self, unit) -> None:
        """Free a unit when backward has passed through all of its runs that have begun."""
        unit.active -= 1
        unit.passing -= 1
        if unit.active <= 0 and unit is not self.units[0]:
            unit.free()
        self.reduce_complete(unit)

    def arrived(self, unit, flat, n: int) -> None:
        """Note that a gradient is complete, which stays in its `.grad`; perhaps it was the last."""
        self.await_end()
        flat.came[n] = flat.whole[n].grad is not None
        self.reduce_complete(unit)

    def reduce_complete(self, unit) -> None:
        """Reduce a unit after its last gradient, but not before backward has left it.

        Its weights are freed by then, and the buffer of its gradients can take their place. The
        root is reduced at the end.
        """
        if self.sync and unit is not self.units[0] and unit.passing <= 0 and unit.complete:
            self.reduce(unit)

    def await_end(self) -> None:
        """Ask autograd to call `finish` at the end of the backward that is running."""
        if not self.queued:
            self.queued = True
            Variable._execution_engine.queue_callback(_End(self))

    def reduce(self, unit) -> None:
        """Launch the reduce_scatter of a unit's gradients, when the one before it is over."""
        for flat in unit.trained:
            if flat.has_gradients:
                self.settle()
                if flat.reduced is not None:  # an earlier part of these gradients
                    self.average()
                flat.fill()
                self.reducing = flat, flat.reduce()

    def settle(self) -> None:
        """Wait for the reduction under way; on a mesh, launch the sum of its shard."""
        if self.reducing is None:
            return
        (flat, work), self.reducing = self.reducing, None
        work.wait()
        further = flat.reduce_further()
        if further is None:
            flat.keep()
        else:
            self.averaging.append((flat, further))

    def average(self) -> None:
        """Wait for the sums of shards among those who hold the same ones, and keep their means."""
        while self.averaging:
            flat, work = self.averaging.pop(0)
            work.wait()
            flat.keep()

    def finish(self) -> None:
        """End a backward: reduce what is left, free everything; autograd calls this."""
        if torch._C._current_autograd_node() is not None:
            self.queued = False
            return  # the end of a checkpoint's segment: backward around it goes on
        for unit in reversed(self.units):
            unit.free()
            if self.sync:
                self.reduce(unit)
            for flat in unit.trained:
                flat.accumulate()
        self.settle()
        self.average()
        for unit in self.units:
            for flat in unit.trained:
                flat.land()
        self.queued = False
        self.drop()

    def drop(self, check: bool = True) -> None:
        """Free all units and forget the runs."""
        self.last = None
        for unit in self.units:
            unit.active = unit.passing = 0
            for flat in unit.flats:
                flat.came = bytearray(len(flat.weights))
                flat.free(check=check)
                if flat.hosted and flat.work is None:
                    flat.hosted.release()

    def reset(self) -> None:
        """After a failure, free everything and drop the gradients that were not reduced.

        A gather that is still under way keeps its buffer until the next forward.
        """
        self.queued = False
        under_way = [*self.averaging, *([self.reducing] if self.reducing else [])]
        self.averaging, self.reducing = [], None
        for flat, work in under_way:  # every rank has launched these, or the group is closed
            with contextlib.suppress(RuntimeError):
                work.wait()
            flat.sending, flat.reduced = False, None
        self.abandon()

    def abandon(self) -> None:
        """Free everything at once, without waiting for what is under way; forget its gradients."""
        for unit in self.units:
            for flat in unit.flats:
                flat.forget()
        self.drop(check=False)


class _End:
    """Ends a backward: autograd calls it, or drops it uncalled where backward has failed."""

    def __init__(self, schedule: Schedule):
        self.schedule: Schedule | None = schedule

    def __call__(self) -> None:
        schedule, self.schedule = self.schedule, None
        schedule.finish()

    def __del__(self):
        if self.schedule is not None:
            self.schedule.abandon()
