"""Both ways bring the same rows, send what is predicted, and let what is between hide them."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.expert import Flat, TwoHops, expert_parallel
from lib.parallel.expert.exchange import Hop
from lib.predict.expert import traffic
from lib.ranks.mesh import mesh
from lib.single.experts import MoE
from tests.parallel.expert import models

WIDTH, EXPERTS, K, TOKENS = 6, 8, 2, 12


def routes(nodes):
    """Return the way in two hops over this many nodes, or the flat one for no nodes."""
    if not nodes:
        return Flat()
    here = mesh(node=nodes, place=dist.get_world_size() // nodes)
    return TwoHops(None, here["place"].group, here["node"].group)


def table_of(ranks):
    return [[(3 * a + 5 * b) % 4 for b in range(ranks)] for a in range(ranks)]


def travelled(nodes):
    """Send rows that say where they come from and go to, there and back, with their gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    table, way = table_of(ranks), routes(nodes)
    labels = [(rank, b, n) for b in range(ranks) for n in range(table[rank][b])]
    rows = torch.tensor(labels, dtype=torch.float64).view(-1, 3).requires_grad_()
    arrived = way.launch(rows, table)()
    back = way.back(arrived * 2, table)
    (gradient,) = torch.autograd.grad((back * torch.arange(1.0, 4.0)).sum(), rows)
    return arrived.detach(), back.detach() - 2 * rows.detach(), gradient


@pytest.mark.parametrize(
    ("ranks", "nodes"), [(2, 0), (4, 0), (4, 2), (8, 2), (8, 4), (4, 4), (4, 1)]
)
def test_rows_arrive_by_sender_and_come_back_to_their_places(worlds, ranks, nodes):
    table = table_of(ranks)
    for rank, (arrived, apart, gradient) in enumerate(worlds(ranks).run(travelled, nodes)):
        expected = [(a, rank, n) for a in range(ranks) for n in range(table[a][rank])]
        assert arrived.tolist() == [list(map(float, row)) for row in expected]
        assert len(apart) == sum(table[rank]) and apart.abs().sum() == 0
        assert gradient.tolist() == [[2.0, 4.0, 6.0]] * sum(table[rank])


def spread_in_two_hops(name, nodes):
    return models.spread(name, routes=routes(nodes))


@pytest.mark.parametrize(("ranks", "nodes"), [(4, 2), (8, 2), (8, 4)])  # 8, 4: a group a node
def test_a_model_trains_the_same_in_two_hops(worlds, ranks, nodes):
    by_rank = worlds(ranks).run(spread_in_two_hops, "two-level", nodes)
    found = models.far(by_rank, models.plain("two-level"))
    assert max(found.values()) < 1e-11, found


def prepared(shared=0):
    import __main__

    torch.manual_seed(dist.get_rank())
    layer = MoE(WIDTH, 10, EXPERTS, K, shared=shared)
    __main__.layer = expert_parallel(layer, average=False)
    __main__.x = torch.randn(1, TOKENS, WIDTH, requires_grad=True)


def step():
    import __main__

    __main__.layer(__main__.x).square().sum().backward()
    return torch.bincount(__main__.layer.decision.assignments.expert, minlength=EXPERTS).tolist()


def test_the_ledger_is_the_prediction(world):
    world.run(prepared)
    table = traffic.table_of(world.run(step))
    ledger = world.record(step)
    for rank in range(len(world)):
        forward, backward = traffic.exchanges(table, rank, EXPERTS, WIDTH)
        rows = sorted(ledger.where(lane="comm", rank=rank), key=lambda row: row.start)
        assert [(r.op, r.bytes) for r in rows] == [(e.op, e.bytes) for e in forward + backward]


def order_of_calls(shared):
    """Note when messages begin and end, and when the shared experts compute."""
    prepared(shared)
    import __main__

    calls, layer, start = [], __main__.layer, Hop.start

    class Noted:
        def __init__(self, work):
            self.work = work

        def wait(self):
            calls.append("wait")
            self.work.wait()

    def noted(self, rows, back=False):
        calls.append("launch")
        work, arriving = start(self, rows, back)
        return Noted(work), arriving

    layer.shared.register_forward_hook(lambda *_: calls.append("shared"))
    layer.shared.register_full_backward_hook(lambda *_: calls.append("shared"))
    Hop.start = noted
    try:
        step()
    finally:
        Hop.start = start
    return calls


def test_shared_experts_compute_while_rows_travel(worlds):
    """Forward: while the rows are under way. Backward: while the rows' gradients are."""
    forward = ["launch", "shared", "wait", "launch", "wait"]
    for calls in worlds(2).run(order_of_calls, 1):
        assert calls[:5] == forward
        backward = calls[5:]
        assert backward.index("shared") < len(backward) - 1 - backward[::-1].index("wait")
        assert backward.count("launch") == 2 == backward.count("wait")
