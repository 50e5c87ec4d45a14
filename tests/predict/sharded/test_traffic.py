"""Communication of each stage: 2ψ, 2ψ, 3ψ, and what hybrid sharding leaves for the network."""

import pytest

from lib.predict.collectives.exchange import Exchange, sent_bytes
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.published import tables
from lib.predict.sharded.traffic import across_hosts, of_fsdp, of_step
from lib.predict.sharded.units import units_of
from tests.every import every

PSI, N = 1_048_576, 64
SHAPE = MLPShape((8, 8, 8, 8), bias=False)  # three units of 64


def in_psi(exchanges, ranks=N):
    return sent_bytes(exchanges) / (4 * PSI) * ranks / (ranks - 1)


def test_the_stages_send_2_2_2_and_3_psi():
    assert [in_psi(of_step(PSI, N, stage)) for stage in range(4)] == pytest.approx([2, 2, 2, 3])
    assert in_psi(of_step(PSI, N, 1, beside_ddp=True)) == pytest.approx(3)
    ops = [[exchange.op for exchange in of_step(PSI, N, stage)] for stage in range(4)]
    assert ops[0] == ["all_reduce"] and ops[2] == ["reduce_scatter", "all_gather"]
    assert ops[3] == ["all_gather", "all_gather", "reduce_scatter"]
    with pytest.raises(ValueError, match="ZeRO has stages 0, 1, 2 and 3, not 5."):
        of_step(PSI, N, 5)


def test_shares_are_padded():
    assert of_step(7, 4, 2) == [Exchange("reduce_scatter", 4, 32), Exchange("all_gather", 4, 32)]
    assert of_step(7, 4, 0) == [Exchange("all_reduce", 4, 28)]


def test_fsdp_launches_its_collectives_in_this_order():
    found = of_fsdp(units_of(SHAPE), 4)
    gather, scatter = Exchange("all_gather", 4, 256), Exchange("reduce_scatter", 4, 256)
    assert found == [gather] * 5 + [scatter, gather, scatter, scatter]
    late = of_fsdp(units_of(SHAPE), 4, prefetch=0)
    assert late == [gather] * 4 + [scatter, gather, scatter, gather, scatter]
    assert sorted(found) == sorted(late)


def test_fsdp_sends_3_psi_and_2_where_it_keeps_units_whole():
    units, whole = units_of(GPTShape(tied=True)), GPTShape(tied=True).numel
    sent = sent_bytes(of_fsdp(units, 2)) / 4  # half of each buffer
    root = units[0].numel
    assert 2 * sent == 3 * whole - root, "the root is gathered once"
    kept = sent_bytes(of_fsdp(units, 2, resharded=False)) / 4
    assert 2 * kept == 2 * whole


def test_precisions_are_those_of_parameters_and_of_the_reduction():
    found = of_fsdp(units_of(SHAPE), 2, param_bytes=2, reduce_bytes=4)
    assert {e.op: e.bytes for e in found} == {"all_gather": 128, "reduce_scatter": 256}


def test_a_number_of_ranks_gathers_again_among_fewer():
    found = of_fsdp(units_of(SHAPE), 4, resharded=2)
    gathers = [exchange.ranks for exchange in found if exchange.op == "all_gather"]
    assert gathers == [4, 4, 4, 2, 2, 2]
    assert sent_bytes(found) < sent_bytes(of_fsdp(units_of(SHAPE), 4))
    with pytest.raises(ValueError, match="4 ranks keep a unit; Groups of 3 cannot share them"):
        of_fsdp(units_of(SHAPE), 4, resharded=3)


def test_hybrid_sharding_sums_the_shards_of_the_replicas():
    found = of_fsdp(units_of(SHAPE), 4, replicas=2)
    sums = [exchange for exchange in found if exchange.op == "all_reduce"]
    assert sums == [Exchange("all_reduce", 2, 64)] * 3
    across = sent_bytes(sums) / 4
    assert across == across_hosts("hybrid", SHAPE.numel, 8, 4)


def test_the_three_formulas_of_fsdp():
    """A ring sends what they say; as the paper prints it, hybrid sharding sends too much."""
    hosts, on_a_host = 64, 8
    ranks, numel = hosts * on_a_host, 8 * 512 * 1000
    full = sent_bytes(of_step(numel, ranks, 3, itemsize=1))
    assert across_hosts("full", numel, ranks, on_a_host) == pytest.approx(full)
    replicate = sent_bytes(of_step(numel, ranks, 0, itemsize=1))
    assert across_hosts("replicate", numel, ranks, on_a_host) == pytest.approx(replicate)
    hybrid = Exchange("all_reduce", hosts, numel // on_a_host).sent
    assert across_hosts("hybrid", numel, ranks, on_a_host) == pytest.approx(hybrid)
    wrong = [
        across_hosts("hybrid", 1.0, w, 8, as_printed=True) / across_hosts("hybrid", 1.0, w, 8)
        for w in (16, 512, 8 * 1024)
    ]
    assert [f"{factor:.1f}" for factor in wrong] == ["1.9", "1.0", "1.0"]
    fsdp = tables()["fsdp"]
    assert set(fsdp["across_hosts"]) == {"full", "replicate", "hybrid"}
    assert every(word in fsdp["note"] for word in ("1.9 times", "1.0 times"))
    with pytest.raises(ValueError, match="No sharding is called 'zero'. Choose full, replicate or"):
        across_hosts("zero", 1.0, 16, 8)
