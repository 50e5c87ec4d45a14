"""Random short programs of collectives, most with one random mistake: who is blamed, and is it so?

Each program is a list of steps for each rank. What must come out is computed here from the lists
alone, by matching what the members of each group call, one after the other.
"""

import os
import random
import threading
import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError
from tests import on_gpus

MISTAKES = ("size", "dtype", "kind", "root", "order", "skip", "extra", "group", "raise", "exit")
LIMIT = 10.0  # seconds that no program may take, however wrong it is


class Planned(Exception):
    """The mistake of a program that raises."""


# What ranks do. A step is (kind, group, size, dtype, root); messages have a pair for their group.


def play(programs, groups):
    """Carry out the own steps; give what came out of each."""
    rank = dist.get_rank()
    made = {members: dist.new_group(members) for members in groups}
    made["world"] = made[tuple(range(dist.get_world_size()))] = dist.group.WORLD
    results = []
    for step in programs[rank]:
        if step[0] == "pause":
            time.sleep(step[1])
        elif step[0] == "raise":
            raise Planned(f"on rank {rank}")
        elif step[0] == "exit":
            os._exit(7)
        elif step[0] == "thread":
            thread = threading.Thread(target=later, args=(step[1], results, made))
            thread.start()
            thread.join()
        else:
            results.append(collective(step, made))
    return results


def later(step, results, made):
    time.sleep(0.08)  # longer than the kernel takes to look twice
    results.append(collective(step, made))


def collective(step, made):
    kind, members, size, dtype, root = step
    numbers = torch.arange(size).to(getattr(torch, dtype)) + dist.get_rank()
    if kind == "message":
        if dist.get_rank() == members[0]:
            dist.send(numbers, members[1], made["world"])
        else:
            dist.recv(numbers, members[0], made["world"])
        return numbers.sum().item()
    group, n = made[members], len(members)
    if kind in ("sum", "max"):
        dist.all_reduce(numbers, getattr(dist.ReduceOp, kind.upper()), group=group)
    elif kind == "broadcast":
        dist.broadcast(numbers, root, group=group)
    elif kind == "gather":
        whole = numbers.new_empty(n * size)
        dist.all_gather_single(whole, numbers, group=group)
        numbers = whole
    elif kind == "exchange":
        whole = numbers.repeat(n)
        numbers = torch.empty_like(whole)
        dist.all_to_all_single(numbers, whole, group=group)
    else:
        dist.barrier(group=group)
    return numbers.double().sum().item()


# Making programs.


def some_step(rng, size, groups):
    kind = rng.choice(
        ("sum", "sum", "max", "broadcast", "gather", "exchange", "barrier", "message")
    )
    if kind == "message":
        members = tuple(rng.sample(range(size), 2))
    else:
        members = rng.choice((tuple(range(size)), *groups))
    dtype = rng.choice(("float32", "float64"))
    return (kind, members, rng.randint(1, 5), dtype, rng.choice(members))


def some_programs(rng, size):
    """Make (programs by rank, groups, mistake or None, rank that makes it)."""
    groups = [tuple(sorted(rng.sample(range(size), rng.randint(2, size)))) for _ in range(2)]
    groups = [g for g in dict.fromkeys(groups) if len(g) < size]
    plan = [some_step(rng, size, groups) for _ in range(rng.randint(2, 6))]
    programs = [[step for step in plan if rank in step[1]] for rank in range(size)]
    mistake, guilty = rng.choice((None, *MISTAKES)), rng.randrange(size)
    own = programs[guilty]
    if mistake:
        spoil(rng, own, mistake, guilty, size, groups)
    for program in programs:  # what is no mistake: being late, and serving from another thread
        for at in range(len(program)):
            if program[at][0] not in ("raise", "exit") and rng.random() < 0.15:
                program[at] = ("thread", program[at])
        if rng.random() < 0.3:
            program.insert(rng.randint(0, len(program)), ("pause", rng.choice((0.01, 0.15))))
    return programs, groups, mistake, guilty


def spoil(rng, own, mistake, guilty, size, groups):
    """Make one mistake in the steps of the guilty rank."""
    if mistake in ("raise", "exit"):
        own.insert(rng.randint(0, len(own)), (mistake,))
    elif mistake == "extra":
        step = some_step(rng, size, groups)
        if guilty in step[1]:
            own.insert(rng.randint(0, len(own)), step)
    elif own:
        at = rng.randrange(len(own))
        kind, members, numel, dtype, root = own[at]
        if kind == "message" and mistake in ("kind", "root", "group"):
            mistake = "size"  # a message has none of these
        if mistake == "skip":
            del own[at]
        elif mistake == "order":
            other = rng.randrange(len(own))
            own[at], own[other] = own[other], own[at]
        else:
            own[at] = {
                "size": (kind, members, numel + 1, dtype, root),
                "dtype": (kind, members, numel, "int32", root),
                "kind": ("sum" if kind == "max" else "max", members, numel, dtype, root),
                "root": (
                    kind,
                    members,
                    numel,
                    dtype,
                    members[(members.index(root) + 1) % len(members)],
                ),
                "group": (kind, tuple(range(size)), numel, dtype, root),
            }[mistake]


# What must come out.


def steps_of(program):
    steps = [step[1] if step[0] == "thread" else step for step in program]
    return [step for step in steps if step[0] != "pause"]


def said(step):
    """What members must agree on."""
    kind, members, numel, dtype, root = step
    if kind == "barrier":
        return (kind,)
    return (kind, numel, dtype, root if kind == "broadcast" else None)


def judge(programs):
    """Give ("fine" | "fails" | "either", all that ranks call in each group, by rank)."""
    calls = {}
    for rank, program in enumerate(programs):
        for step in steps_of(program):
            if step[0] in ("raise", "exit"):
                break
            key = (step[0] == "message", step[1])
            calls.setdefault(key, {}).setdefault(rank, []).append(said(step))
    alike = all(
        calls[key].get(rank, []) == next(iter(calls[key].values()))
        for key in calls
        for rank in key[1]
    )
    planned = any(step[0] in ("raise", "exit") for program in programs for step in program)
    if planned or not alike:
        return "fails", calls
    return ("fine" if runs_through(programs) else "either"), calls


def runs_through(programs):
    """True if all come to their end where every call waits for all its members."""
    left = [steps_of(program) for program in programs]
    while any(left):
        ready = [
            steps[0]
            for steps in left
            if steps and all(left[m] and left[m][0][:2] == steps[0][:2] for m in steps[0][1])
        ]
        if not ready:
            return False
        for member in ready[0][1]:
            left[member].pop(0)
    return True


def check(error, programs, mistake, guilty, calls):
    """Hold what is told against what was done."""
    text = str(error)
    assert "could not be made" not in text and "Error:" not in text.replace("RankError:", ""), text
    if " raised " in text or " died" in text:
        assert mistake in ("raise", "exit"), text
        assert f"rank {guilty} {'raised Planned' if mistake == 'raise' else 'died'}" in text, text
        assert error.rank == guilty, text
        return
    differing = [
        key
        for key, by in calls.items()
        if any(by.get(r, []) != by.get(key[1][0], []) for r in key[1])
    ]
    if "do not agree" in text:
        assert differing, text
    if error.rank is not None and "wait for each other" not in text:
        assert error.rank == guilty, text


def try_one(world, seed):
    """Run one program; give (its mistake, what must be, what was, seconds)."""
    rng = random.Random(seed)
    programs, groups, mistake, guilty = some_programs(rng, world.size)
    verdict, calls = judge(programs)
    began, outcome = time.monotonic(), "fine"
    try:
        world.run(play, programs, groups)
    except RankError as error:
        outcome = str(error)
        assert verdict != "fine", f"seed {seed}: {programs}\n{error}"
        check(error, programs, mistake, guilty, calls)
    else:
        assert verdict != "fails", f"seed {seed}: nobody saw {mistake} on {guilty}: {programs}"
    seconds = time.monotonic() - began
    assert seconds < LIMIT, f"seed {seed}: {seconds:.1f} s\n{outcome}"
    return mistake, verdict, outcome, seconds


def total():
    numbers = torch.ones(1)
    dist.all_reduce(numbers)
    return numbers.item()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_random_programs_with_random_mistakes(worlds, size):
    """Case 28: no hang, no wrong accusation, no error of our own, and the next call works."""
    world = worlds(size, **on_gpus.PATIENCE)
    seen = set()
    for seed in range(15):
        mistake, verdict, _, _ = try_one(world, 1000 * size + seed)
        seen.add(verdict)
        assert world.run(total) == [float(size)] * size
    assert seen >= {"fine", "fails"}
