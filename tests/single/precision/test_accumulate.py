"""Accumulators of few bits, simulated exactly: where sums stall, and how errors grow."""

import random
from fractions import Fraction

import pytest
import torch

from lib.predict import number_formats
from lib.single.formats import BF16, E4M3, E5M2, FP16, FP32, FloatFormat
from lib.single.precision.accumulate import matmul_in, relative_error, softmax_in, sum_in
from lib.single.precision.summing_order import exponent
from tests.every import every


def pair(length, seed, form=FP32, rows=8):
    """Two matrices of normal numbers whose product has sums of so many terms."""
    noise = torch.Generator().manual_seed(seed)
    a = torch.randn(rows, length, generator=noise)
    return form.round(a), form.round(torch.randn(length, rows, generator=noise))


def nearest(form, number):
    """The number of the format that is nearest to a fraction, of two the even one."""
    plain = getattr(number_formats, form.name)
    low = plain.code_of(abs(float(number)))
    around = [plain.value(code) for code in range(max(low - 1, 0), low + 2)]
    best = min(around, key=lambda x: (abs(Fraction(x) - abs(number)), plain.code_of(x) % 2))
    return Fraction(best) * (1 if number >= 0 else -1)


# --- sums that stall


@pytest.mark.parametrize(("form", "stalls"), [(BF16, 256), (FP16, 2048), (E4M3, 16), (E5M2, 8)],
                         ids=lambda x: getattr(x, "name", x))  # fmt: skip
def test_a_sum_of_ones_stalls_where_the_next_number_is_two_away(form, stalls):
    more = torch.ones(stalls + 100)
    assert sum_in(form, more).item() == stalls == 2 ** (form.mantissa + 1)
    assert sum_in(form, more[:stalls]).item() == stalls  # not before
    assert sum_in(FP32, more).item() == stalls + 100


def test_torchs_own_sum_of_bf16_ones_does_not_stall_but_a_loop_does():
    """PyTorch's `sum` accumulates in fp32 and rounds once at the end."""
    ones = torch.ones(3000, dtype=torch.bfloat16)
    total = torch.zeros((), dtype=torch.bfloat16)
    for one in ones:
        total += one
    assert total.item() == 256 and abs(ones.sum().item() - 3000) <= 8


def test_blocks_and_chance_help_a_stalled_sum():
    assert sum_in(BF16, torch.ones(3000), block=128).item() == 3000
    noise = torch.Generator().manual_seed(0)
    sums = sum_in(BF16, torch.ones(100, 3000), rounding="stochastic", generator=noise)
    assert abs(sums.mean() / 3000 - 1) < 0.02 and sums.std() > 0


# --- exactness


@pytest.mark.parametrize("form", [BF16, FP16, E4M3], ids=lambda form: form.name)
@pytest.mark.parametrize("block", [None, 5])
def test_a_dot_product_is_the_exact_reference(form, block):
    a, b = pair(23, 0, form, rows=3)
    found = matmul_in(form, a, b, block, overflow="saturate")
    for i in range(3):
        for j in range(3):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist())]
            length = block or len(terms)
            sums = []
            for start in range(0, len(terms), length):
                total = Fraction(0)
                for term in terms[start : start + length]:
                    total = nearest(form, total + term)
                sums.append(total)
            total = sums[0]
            for term in sums[1:]:
                total = Fraction(torch.tensor(float(total + term)).item())
            assert Fraction(found[i, j].item()) == total
    assert not torch.equal(found, form.round(a @ b))  # a bite: rounded once at the end


def test_terms_that_fp64_cannot_add_are_added_exactly():
    """A term at the middle of two fp16 numbers, and a sum far below it that decides."""
    terms = torch.tensor([2.0**-24, 1 + 2.0**-11], dtype=torch.float64)
    tiny = torch.tensor([2.0**-60, 1 + 2.0**-8], dtype=torch.float64)
    assert sum_in(FP16, terms).item() == 1 + 2.0**-10
    assert sum_in(BF16, tiny).item() == 1 + 2.0**-7  # 1 + 2^-8 alone is a tie, and 1 is even
    assert sum_in(BF16, tiny[1:]).item() == 1


def test_in_fp32_it_is_pytorchs_own_loop():
    draw = random.Random(0)
    terms = torch.tensor([draw.uniform(-1, 1) for _ in range(500)])
    total = torch.zeros(())
    for term in terms:
        total = total + term
    assert sum_in(FP32, terms).item() == total.item() != terms.double().sum().float().item()


def test_products_may_be_rounded_too():
    a, b = torch.tensor([[1.125, 0.0]]), torch.tensor([[1.125], [1.0]])
    assert matmul_in(FP32, a, b).item() == 1.265625
    assert matmul_in(FP32, a, b, products=E4M3).item() == 1.25


def test_overflow():
    x = torch.full((3,), 40000.0)
    assert sum_in(FP16, x).isinf() and sum_in(FP16, x, overflow="saturate") == 65504


# --- how errors grow


LENGTHS = (32, 128, 512, 2048)


def grown(form, seed, block=None):
    """Errors by the length of the sums."""
    return [relative_error(matmul_in(form, a, b, block), a, b)
            for a, b in (pair(length, seed, BF16) for length in LENGTHS)]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_errors_grow_with_the_length_and_blocks_stop_them(seed):
    """Products of bf16 numbers. In bf16 the error grows about as the root of the length."""
    small, blocks, wide = grown(BF16, seed), grown(BF16, seed, 128), grown(FP32, seed)
    assert small[-1] > 4 * small[0] and 0.3 < exponent(LENGTHS, small) < 0.7
    assert max(blocks[1:]) < 2 * min(blocks[1:]) and small[-1] > 2.5 * blocks[-1]
    assert max(wide) < 1e-4 * max(small)


@pytest.mark.parametrize("seed", range(3))
def test_terms_of_one_sign_are_lost_where_the_sum_is_large(seed):
    """Squares: the sum only grows, so most terms are small beside it, also in 14 bits."""
    a = pair(4096, seed, BF16)[0]
    fourteen = FloatFormat(8, 13)
    plain = sum_in(BF16, a**2) / (a.double() ** 2).sum(-1) - 1
    assert every((plain < -0.4).tolist())  # it stalls at about half of the sum
    blocks = sum_in(fourteen, a**2, 128) / (a.double() ** 2).sum(-1) - 1
    whole = sum_in(fourteen, a**2) / (a.double() ** 2).sum(-1) - 1
    assert blocks.abs().max() < 2e-4 and whole.norm() > 2 * blocks.norm()


# --- softmax


def test_softmax_in_fp16_overflows_unless_the_maximum_is_subtracted():
    x = torch.tensor([[1.0, 12.0, 3.0], [0.0, 1.0, 2.0]])
    wrong = softmax_in(FP16, x, subtract_maximum=False)
    assert wrong[0, 1].isnan() and wrong[0, [0, 2]].eq(0).all()  # inf / inf, and x / inf
    assert torch.allclose(wrong[1], x[1].softmax(-1), rtol=2e-3)  # small ones go well
    right = softmax_in(FP16, x)
    assert torch.allclose(right, x.softmax(-1), rtol=2e-3, atol=2.0**-24)
    assert not softmax_in(BF16, x, subtract_maximum=False).isnan().any()  # bf16 has fp32's range


def test_a_long_softmax_in_bf16_loses_its_sum():
    x = torch.zeros(1, 4096)
    assert softmax_in(BF16, x).sum().item() == 4096 / 256


def test_on_an_accelerator():
    if not torch.accelerator.is_available():
        pytest.skip("there is no accelerator")
    device = torch.accelerator.current_accelerator()
    a, b = pair(40, 0, BF16)
    found = matmul_in(BF16, a.to(device), b.to(device), 16, products=BF16)
    assert torch.equal(found.cpu(), matmul_in(BF16, a, b, 16, products=BF16))
    assert torch.equal(softmax_in(FP16, a.to(device)).cpu(), softmax_in(FP16, a))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"needs \[M, K\] and \[K, N\], not \[2, 3\] and \[2, 3\]"):
        matmul_in(FP16, torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="at least 1 term, not 0"):
        sum_in(FP16, torch.ones(3), block=0)
