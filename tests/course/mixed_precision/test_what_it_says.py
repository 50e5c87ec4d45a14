"""What chapter 10 says of its numbers is what its cells printed, and what is computed here."""

import math
import re

import pytest
import torch
from torch import nn

from lib.course.mixed_precision.gradients import gradients, shares
from lib.course.mixed_precision.networks import BOXES, DETECTOR, LANGUAGE, SMALL_GPT
from lib.course.mixed_precision.training import Recipe, final_loss
from lib.course.mixed_precision.training import losses as train
from lib.predict.collectives.rounding import ROUNDING, error_of_sum
from lib.predict.number_formats import BF16, E4M3, E5M2, FP16, FP32, TF32
from lib.predict.precision.published import bert_large
from lib.predict.roofline import speeds
from lib.single import GPT
from lib.single.formats import BF16 as NEAREST
from lib.single.formats import FP16 as HALF
from lib.single.precision import RoundedWeights, softmax_in
from tests.course.stored_chapter import chapter_fixtures, limit_tests, shown
from tests.every import every

notebook, text = chapter_fixtures("10-mixed-precision")


test_the_main_path, test_the_minutes, test_what_it_prints = limit_tests()


def test_the_peaks_of_the_opening(text):
    peaks = [speeds("H100", dtype=dtype).peak / 1e12 for dtype in ("fp16", "fp32", "tf32")]
    assert peaks == [989, 67, 494.5] and TF32.bits == 19  # NVIDIA's sheet has 495
    assert "The peak of an H100 is 989 TFLOP/s with 16-bit numbers. With 32-bit" in text
    assert "numbers it is 67, or 495" in text
    assert "if matrix products may round their inputs to TF32, which keeps 19 bits." in text


def test_the_training_that_fails(notebook, text):
    fp32, fp16 = shown(notebook, "half = train(").splitlines()[-2:]
    first, second, last = (float(loss) for loss in fp32.split()[1:])
    assert fp16.split()[2:] == ["nan", "nan"] and fp16.split()[1] == fp32.split()[1]
    assert round(first / last) == 26 and "the loss is 26 times smaller after 200 steps" in text
    assert round(second / first, 1) == 4.5 and "makes the loss 4.5 times as large" in text
    assert 4 * BOXES == 16_384 and "4,096 boxes" in text and "all 16,384 offsets" in text


def test_the_formats(notebook, text):
    assert FP16.value(0b0_01111_1000000000) == 1.5
    assert FP16.smallest == 2.0**-24 and f"{FP16.smallest:.0e}" == "6e-08"
    assert FP16.code_of(1e-8) == 0 and FP16.value(FP16.code_of(65519)) == 65504
    assert FP16.code_of(65520, "infinity") == FP16.largest_code + 1
    assert BF16.value(BF16.code_of(65520)) == 65536 and E4M3.value(0b0_1111_110) == 448
    assert [FP16.epsilon, BF16.epsilon] == [2.0**-10, 2.0**-7]
    assert BF16.smallest == 2.0**-133 and FP32.largest == pytest.approx(BF16.largest, rel=0.01)
    assert "8 on the exponent, as fp32 does, and 7 on the mantissa" in text
    assert E4M3.epsilon == 2.0**-3 and "has 4 bits of exponent and 3 of mantissa" in text
    for form, ends in (
        (FP32, ("1.4e-45", "3.4e+38")), (FP16, ("6e-08", "65504")),
        (BF16, ("9.2e-41", "3.4e+38")), (E4M3, ("0.002", "448")), (E5M2, ("1.5e-05", "57344")),
    ):  # fmt: skip
        assert (f"{form.smallest:.2g}", f"{form.largest:.5g}"[:5] if form.largest < 1e6 else
                f"{form.largest:.2g}") == ends  # fmt: skip
    card, eight = (line for line in text.splitlines() if line.startswith("| smallest, largest"))
    for number in ("1.4·10⁻⁴⁵, 3.4·10³⁸", "6.0·10⁻⁸, 65,504", "9.2·10⁻⁴¹, 3.4·10³⁸"):
        assert number in card
    assert "| 2.0·10⁻³, 448 | 1.5·10⁻⁵, 57,344 |" in eight


def test_what_is_lost_at_each_scale(notebook, text):
    every_gradient = gradients(DETECTOR).all
    at = {power: shares(every_gradient, 2.0**power) for power in (0, 20, 21, 23, 24)}
    assert (
        0.66 < at[0].zero < 0.67 + 0.005 and "Two thirds of the gradients are at most 2⁻²⁵" in text
    )
    assert "zero in fp16: 67%" in shown(notebook, "numbers.half() == 0")
    assert at[20].zero > 0 == at[21].zero and at[23].overflow == 0 < at[24].overflow
    assert "From 2²¹ on none becomes zero" in text and "up to 2²³ no gradient becomes" in text
    first = gradients(DETECTOR).activations["blocks.0.linear"]
    assert shares([first]).zero > 0.99 and "Nearly all of them are gradients of the first" in text
    assert f"{(2.0**-25 / 0.001) ** 0.5:.4f}" == "0.0055"  # v begins as g²/1000
    assert "which fp16 rounds to zero for every |g| below 0.0055" in text


def test_the_scaled_gradients(notebook, text):
    rows = [line.split() for line in shown(notebook, "def scaled_gradients").splitlines()[1:]]
    assert [row[1] for row in rows[:3]] == ["100.00%", "12.78%", "0.09%"]
    assert "with 2⁴ still 13 % off" in text and rows[3][-1] == "inf%"
    assert 2.0**-11 < 0.0009 < 2 * 2.0**-11  # a mean of many roundings to 11 bits


def test_why_adam_loses_the_last_layer_too(text):
    """Its gradients survive in fp16; their squares, times 0.001, do not."""
    last = gradients(DETECTOR).weights["blocks.1.linear.weight"]
    assert shares([last]).zero == 0 and shares([0.001 * last**2]).zero == 63 / 64
    assert (1e-3 * torch.tensor([0.0054, 0.0055]) ** 2).half().tolist() == [0, 2**-24]
    assert "which is zero in fp16 for |g| below 0.0055: for all but one of 64 weights" in text


def test_how_often_the_first_layer_gets_a_gradient_without_a_scale(text):
    model = DETECTOR.model(0).half()
    optimizer, times = RoundedWeights(DETECTOR.optimizer(model.parameters())), 0
    for step in range(200):
        inputs, targets = DETECTOR.batch(0, step)
        optimizer.zero_grad()
        DETECTOR.loss(model(inputs.half()).float(), targets).backward()
        times += bool(next(model.parameters()).grad.any())
        optimizer.step()
    assert times == 12 and "its first layer gets a gradient in only 12 of the 200 steps" in text


def test_vs_in_bf16_never_fall(text):
    v = torch.ones(1, dtype=torch.bfloat16)
    for _ in range(100):
        v = v * 0.999
    assert v.item() == 1 and "0.999·v rounds back to v, which never falls (0.95·v does" in text
    assert (v * 0.95).item() < 0.96


def test_the_skipped_steps(notebook, text):
    answer = shown(notebook, "scaler = LossScaler(initial=2.0**30)")
    assert "It is 7 steps" in answer and "skipped in all: 8" in answer
    assert "same scales: True" in shown(notebook, "def next_scale")
    assert "because of these eight steps" in text
    assert "Seven skips bring s to 2²³: the scales from 2³⁰ down to 2²⁴ all overflow" in text


def test_the_scaled_run_lags_by_its_skipped_steps_alone(text):
    """Fp32 that skips the same steps ends where scaled fp16 does."""
    model, losses = DETECTOR.model(0), []
    optimizer = DETECTOR.optimizer(model.parameters())
    for step in range(200):
        inputs, targets = DETECTOR.batch(0, step)
        optimizer.zero_grad()
        loss = DETECTOR.loss(model(inputs), targets)
        loss.backward()
        if step not in (*range(7), 8):
            optimizer.step()
        losses.append(loss.item())
    scaled = train(DETECTOR, Recipe(torch.float16, scale=2.0**30), 0, 200)
    assert final_loss(scaled) == pytest.approx(final_loss(losses), rel=0.002)
    plain = train(DETECTOR, Recipe(torch.float32), 0, 200)
    assert "if fp32 leaves them out too, both end within 0.2 %" in text
    above = re.search(r"ends (\d+) % above fp32 because of these eight steps", text)[1]
    assert round(100 * (final_loss(scaled) / final_loss(plain) - 1)) == int(above)


def test_clipping_first_hurts_adam_too(text):
    """Gradients of norm 1 that are divided by s after clipping come near Adam's ε."""
    draw = torch.Generator("cpu").manual_seed(0)

    def step_length(size):
        """Give the mean length of Adam's updates for random gradients of this size."""
        weights = torch.zeros(2000, dtype=torch.float64, device="cpu", requires_grad=True)
        adam, lengths = torch.optim.Adam([weights], lr=1.0, betas=(0.9, 0.99)), []
        for _ in range(300):
            before = weights.detach().clone()
            weights.grad = size * torch.randn(2000, generator=draw, dtype=torch.float64)
            adam.step()
            lengths.append((weights.detach() - before).norm())
        return torch.stack(lengths[100:]).mean().item()

    for parameters, share in ((10**6, 0.60), (10**9, 0.05)):
        size = parameters**-0.5
        assert step_length(size / 2**16) / step_length(size) == pytest.approx(share, abs=0.01)
    words = "with Adam about 60 % as large at 10⁶ parameters, 5 % at 10⁹ (limit 1, "
    assert f"{words}s = 65,536, gradients alike)" in text


def test_pytorchs_fused_adam_with_fp16_states_raises_nothing_and_learns_far_less(text):
    """Its kernel computes in fp32, so ε is not lost; the first layer's gradients are.

    How little it learns differs between processors, and some seeds diverge.
    """
    for seed in range(3):
        model = DETECTOR.model(seed).half()
        adam = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        options = DETECTOR.optimizer(model.parameters()).defaults
        adam.param_groups[0].update({name: options[name] for name in ("lr", "betas", "eps")})
        for step in range(200):
            inputs, targets = DETECTOR.batch(seed, step)
            adam.zero_grad()
            loss = DETECTOR.loss(model(inputs.half()).float(), targets)
            loss.backward()
            adam.step()
        plain = final_loss(train(DETECTOR, Recipe(torch.float32), seed, 200))
        assert all(weight.isfinite().all() for weight in model.parameters())
        assert loss.item() > 5 * plain, (seed, loss.item(), plain)
    assert "with `fused=True` no error, but it learns far less than fp32, or diverges" in text


def test_a_nan_in_every_step_brings_pytorchs_scale_to_zero_without_an_error(text):
    weight = torch.ones(1, device="cpu", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(166):
        weight.grad = None
        scaler.scale(weight.sum() * float("nan")).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 0 and weight.item() == 1
    assert "every step is skipped and s falls, in PyTorch to 0 without an error" in text


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_the_step_in_pytorch_runs_as_it_is_written(notebook, dtype):
    (cell,) = [c.source for c in notebook.cells if "torch.amp.GradScaler(device," in c.source]
    code = cell.split("```python\n")[1].split("```")[0]
    assert code.count("dtype = torch.bfloat16\n") == 1
    code = code.replace("dtype = torch.bfloat16\n", f"dtype = torch.{dtype}\n")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, device="cpu")
    before = model.weight.detach().clone()
    batches = [(torch.randn(2, 4, device="cpu"), torch.randn(2, 4, device="cpu"))] * 2
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {"torch": torch, "model": model, "batches": batches, "optimizer": optimizer}
    loss_of = lambda y, t: torch.nn.functional.mse_loss(y.float(), t)
    names |= {"device": "cpu", "loss_of": loss_of}
    exec(code, names)
    assert names["scaler"].is_enabled() == (dtype == "float16")
    assert names["scaler"].scale(torch.ones(())) == (2.0**16 if dtype == "float16" else 1)
    assert not torch.equal(model.weight, before) and model.weight.isfinite().all()


def test_the_ranks(notebook):
    lines = shown(notebook, "together = world.run(").splitlines()[-4:]
    counts = [tuple(re.findall(r"\d[\d,]*", line)) for line in lines]
    assert counts == [
        ("0", "4", "16,384"), ("1", "3", "8,192"), ("0", "3", "8,192"), ("1", "3", "8,192"),
    ]  # fmt: skip
    assert 8 * 2**14 == 131_072 > FP16.largest


def test_the_updates(notebook, text):
    lines = shown(notebook, "master += 0.0004").splitlines()
    ends = {line[:18].strip(): float(line[18:]) for line in lines}
    assert ends["fp16"] == ends["bf16"] == 1
    assert ends["bf16, master"] == round(torch.tensor(1.4).bfloat16().item(), 4) == 1.3984
    assert "The weight with a master copy is 1.3984, the bf16 number nearest to 1.4" in text
    ups = 1000 * 0.0004 * 2**7  # expected of 1,000 draws, each up with this probability / 1,000
    deviation = (ups * (1 - ups / 1000)) ** 0.5 / 2**7
    assert round(deviation, 2) == 0.05 and "a standard deviation of 0.05" in text
    assert abs(ends["bf16, stochastic"] - 1.4) < 2 * deviation


def test_master_weights(notebook, text):
    lines = shown(notebook, "lessons.compare(REGRESSION").splitlines()[1:]
    ratios = {line[:20].strip(): [float(n) for n in line[20:].split()] for line in lines}
    assert [min(ratios["fp16"]), max(ratios["fp16"])] == [1.14, 1.23]
    assert "14 to 23 % above" in text and min(ratios["bf16"]) > 1.9 and max(ratios["bf16"]) < 4
    assert ratios["fp16, masters"] == ratios["bf16, masters"] == [1.0, 1.0, 1.0]
    assert every(abs(ratio - 1) <= 0.0101 for ratio in ratios["bf16, stochastic"])


def test_the_sums(notebook, text):
    assert "It is 256." in shown(notebook, "stalled.reveal")
    answer = shown(notebook, "print(means())")
    assert NEAREST.round(torch.tensor([257.0])).item() == 256 and 256 + 2 == 258
    assert "nearly 2 % for 4,096 terms" in text
    rows = {line[:17].strip(): [float(n) for n in line[17:].split()]
            for line in answer.splitlines() if line.startswith("fp16")}  # fmt: skip
    assert min(rows["fp16, sums fp16"]) > 50 and "so every sensor shows 2,048/4,096 = 0.5" in text
    assert "fp16, sums fp16       0.500  0.500  0.500  0.500" in answer
    assert max(rows["fp16, sums fp32"] + rows["fp16, blocks fp16"]) < 1.04


def test_sums_over_ranks(notebook, text):
    """The formula: √(1 + n/2) round a ring and √(1 + log₂ n) along a tree."""
    errors = shown(notebook, "lessons.reduced").partition("ranks      ring      tree\n")[2]
    lines = errors.splitlines()
    assert len(lines) == 4
    for line in lines:
        n, ring, tree = (float(number) for number in line.replace("%", "").split())
        for error, way in ((ring, "ring"), (tree, "tree")):
            predicted = 100 * error_of_sum(way, int(n), BF16.epsilon)
            assert error == pytest.approx(predicted, rel=0.15)
            growth = (1 + (n / 2 if way == "ring" else math.log2(n))) ** 0.5
            assert predicted == pytest.approx(100 * ROUNDING * BF16.epsilon * growth, rel=0.2)
    assert round(ring, 1) == 2.7 and text.count("2.7 %") == 2


def test_what_is_kept_and_sent(notebook, text):
    lines = shown(notebook, "kept = lessons.kept()").splitlines()[-4:]
    numbers = [[int(n.replace(",", "")) for n in line[13:].split()] for line in lines]
    assert [row[4] for row in numbers] == [16, 16, 16, 12]
    fp32, bf16, autocast, alone = (row[5] for row in numbers)
    assert alone == bf16
    assert round(bf16 / fp32, 2) == 0.5 and round(autocast / fp32, 2) == 0.64
    assert "Activations shrink to half in bf16, and to 64 % under autocast" in text
    copies = 2 * sum(
        layer.weight.numel() for layer in GPT(SMALL_GPT).modules() if isinstance(layer, nn.Linear)
    )
    assert round((autocast - copies) / fp32, 2) == 0.58 and "which makes it 58 %" in text
    sent = shown(notebook, "runs = {")
    assert re.findall(r"(\d+)%", sent) == ["100", "67", "50"]


def test_the_published_ratios(text):
    errors = {(row.gpu, row.sequence): row.error for row in bert_large()}
    assert every(abs(errors["A100", length]) < 0.05 for length in (128, 512))
    v100 = sorted(round(100 * errors["V100", length]) for length in (128, 512))
    assert v100 == [19, 26] and "26 and 19 % too high" in text
    assert "prediction is within 5 %" in text
    published = sorted(row.ratios[0] for row in bert_large() if row.gpu == "V100")
    assert [round(ratio, 1) for ratio in published] == [3.9, 4.5] and "3.9 to 4.5 times" in text


def test_why_the_detectors_gradients_are_small(notebook, text):
    """The estimate of the text, beside the gradients themselves."""
    first = float(shown(notebook, "half = train(").splitlines()[-2].split()[1])
    assert 0.009 < first**0.5 < 0.012 and "by about its square root, 0.01" in text
    found = gradients(DETECTOR).activations
    middle = {name: gradient[gradient != 0].abs().median() for name, gradient in found.items()}
    assert 3e-7 < middle["blocks.1.linear"] < 3e-6 and round(2 * 0.01 / 16_384, 7) == 1.2e-6
    assert 3e-10 < middle["blocks.0.linear"] < 4e-9 and "about 10⁻⁹, far below 3·10⁻⁸" in text


def test_pytorchs_defaults(text):
    assert torch.get_autocast_dtype("cuda") == torch.float16
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert "Without `dtype`, `torch.autocast` chooses fp16 on CUDA" in text
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert torch.amp.GradScaler("cpu").get_scale() == 2.0**16 and "s = 65,536" in text
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight], 0.1)
    scaler.scale(weight.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)
    state = torch.optim.Adam([weight.detach().bfloat16().requires_grad_()])
    state.param_groups[0]["params"][0].grad = torch.ones(2, dtype=torch.bfloat16)
    state.step()
    (kept,) = state.state.values()
    assert kept["exp_avg"].dtype == kept["exp_avg_sq"].dtype == torch.bfloat16


def test_the_card(text):
    """A softmax without its maximum is nan in fp16 from exp(11.1) = 65,504 on."""
    scores = torch.tensor([[11.2, 0.0]])
    assert softmax_in(HALF, scores, subtract_maximum=False).isnan().any()
    assert not softmax_in(HALF, scores - 0.2, subtract_maximum=False).isnan().any()
    eleven = torch.tensor([[11.0, 11.0, 0.0]])
    assert not softmax_in(HALF, eleven, subtract_maximum=False).any(), "its sum is infinite"
    assert "zeros once the sum passes 65,504 (two scores of 11); nan from a score of 11.1" in text


def test_eight_and_four_bits(notebook, text):
    def rows(words):
        lines = shown(notebook, words).splitlines()[1:]
        return {line[:22].strip(): line[22:].strip() for line in lines if "%" not in line}

    eight = rows("codes.float() * scale)")
    alone, beside = shown(notebook, "codes.float() * scale)").splitlines()[:2]
    exact, found = [0.01, 0.1, 1, 7], [float(number) for number in alone.split()[1:]]
    assert found == pytest.approx(exact, rel=0.03) and "change by less than 3 %" in text
    assert beside.split()[1:5] == ["0", "0", "0", "9.14"] and "7 becomes 9.1, and the" in text
    ways = ("tensor", "row", "block")
    assert {eight[f"plain, {way}"] for way in ways} == {
        "under 0.01"
    } and "means are within 0.01" in text
    assert [eight[f"outlier, {way}"] for way in ways] == ["about 1", "about 1", "about 0.2"]
    assert 2.0**20 / E4M3.largest > 2000 and "the loss is about 1 higher" in text
    rounded = (torch.tensor([2.28, 2.3]) * E4M3.largest / 2.0**20).to(torch.float8_e4m3fn).float()
    assert rounded.tolist() == [0, 2.0**-9] and "entry below about 2.3 is rounded to zero" in text
    four = rows("microscaled, **options")
    assert [four[name] for name in ("MXFP4", "NVFP4", "NVFP4, stochastic")] == [
        "about 0.2", "about 0.05", "about 0.02"
    ]  # fmt: skip
    assert (
        "loses much less than MXFP4" in text
        and "and less still with stochastically rounded gradients" in text
    )
    assert four["NVFP4, stochastic"] == four["MXFP8, floor"]
    assert four["MXFP8, ceil"] == "under 0.01"
    scale = 100_000 / E4M3.largest
    one, small = (
        (torch.tensor([1.0, 0.2]) / scale).to(torch.float8_e4m3fn).float() * scale
    ).tolist()
    assert (round(one, 2), small) == (
        0.87,
        0,
    ) and "1 would become 0.87, and every number below 0.2" in text
    late = shown(notebook, "in enumerate(delayed_steps(").splitlines()
    assert [line.split()[3] for line in late[1:]] == ["0%"] * 3 + ["61%"] + ["0%"] * 3
    powers = [math.frexp(E4M3.value(code))[1] for code in range(1, E4M3.largest_code + 1)]
    assert len(set(powers)) == 18 and "spans 18 powers of two" in text


def test_gradients_of_ranks_have_something_in_common(notebook, text):
    assert "correlation of two ranks: 0.59, trained 0.05" in shown(notebook, "sums.in_common(")
    assert "have a correlation of 0.59, and after 300 steps one of 0.05" in text


def test_the_language_model_seldom_underflows():
    assert shares(gradients(LANGUAGE, steps=10).all).zero < 0.1
