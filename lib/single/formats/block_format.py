"""Small formats whose numbers share a scale: a block of neighbours along the last dim has one.

    number = element · scale of its block · scale of the tensor

[Note: the scale of MX]
MX's scales are powers of two, E8M0. With m the largest magnitude of a block, the scale is
2^(floor(log2 m) - emax), where 2^emax is the largest power of two among the elements. That is the
rule of the specification ("floor"). The largest element then lies between 2^emax and 2^(emax + 1),
and what is above the largest number saturates: up to a quarter of it in MXFP4, where 7.9 becomes 6.
Two other rules are in use. "ceil" takes the smallest scale with which nothing saturates (RCEIL in
torchao): Mishra et al. 2025, "Recipes for Pre-training LLMs with MXFP8" (arXiv 2506.08027), whose
training could diverge with the specification's rule. "even" rounds m to the element's mantissa
first, ties up (EVEN in torchao).

[Note: the scales of NVFP4]
E4M3 has a mantissa, so a scale fits its block more closely than a power of two does, but it has few
exponents. A fp32 scale for the whole tensor therefore moves the largest block to the end of E4M3's
range: it is the tensor's largest magnitude divided by 448 · 6. A block so small that its scale
rounds to zero is zero.

Sources: OCP Microscaling Formats (MX) v1.0, 2023, sections 5 and 6.3; NVIDIA 2025, "Pretraining
Large Language Models with NVFP4", appendix (NVFP4).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lib.single.formats.float_format import (
    CHUNK,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    MANTISSA,
    FloatFormat,
)

RULES = ("floor", "ceil", "even")


class BlockCodes(NamedTuple):
    """What is kept of a tensor: codes of its elements and scales, and one fp32 scale or None."""

    elements: Tensor  # [..., N], integer codes of the element's format, one byte each here
    scales: Tensor  # [..., N / block], integer codes of the scale's format
    tensor_scale: Tensor | None  # [], fp32


class BlockFormat:
    """Turns tensors into elements and scales, and these into numbers.

    `block` neighbours along the last dim share a scale; `rule` is how a scale that is a power of
    two is chosen: "floor", "ceil" or "even". Any other format of scales, such as E4M3, takes the
    block's largest magnitude divided by the largest element, and with it a scale for the tensor.
    """

    def __init__(
        self, name: str, element: FloatFormat, scale: FloatFormat, block: int, rule: str = "floor"
    ):
        if rule not in RULES:
            raise ValueError(f"`rule` is one of {', '.join(RULES)}, not {rule!r}.")
        if block < 1:
            raise ValueError(f"A block has at least 1 element, not {block}.")
        self.name, self.element, self.scale = name, element, scale
        self.block, self.rule = block, rule

    def __repr__(self) -> str:
        return f"{self.name}({self.element.name}, {self.scale.name} for {self.block})"

    @property
    def has_tensor_scale(self) -> bool:
        """Whether one more scale, in fp32, belongs to the whole tensor."""
        return self.scale.mantissa > 0

    @property
    def bits(self) -> float:
        """The bits of one number, its share of the block's scale included."""
        return self.element.bits + self.scale.bits / self.block

    def nbytes(self, numel: int) -> int:
        """Return the bytes of so many numbers with all their scales, elements lying packed.

        Raises ValueError where the numbers are no whole blocks.
        """
        self._check(numel)
        packed = math.ceil(numel * self.element.bits / 8)
        scales = numel // self.block * self.scale.bits // 8
        return packed + scales + 4 * self.has_tensor_scale

    def encode(
        self, x: Tensor, rounding: str = "nearest", overflow: str = "saturate",
        generator: torch.Generator | None = None,
    ) -> BlockCodes:  # fmt: skip
        """Return the codes of the elements of x [..., N], of their scales, and the tensor's scale.

        The arguments are those of `FloatFormat.encode`, for the elements. A block of MX that holds
        infinity or NaN has the scale NaN. Raises ValueError where N is no multiple of the block,
        and what `FloatFormat.encode` raises.
        """
        self._check(x.shape[-1] if x.dim() else 1)
        blocks = x.detach().reshape(-1, self.block)
        whole = self._tensor_scale(blocks) if self.has_tensor_scale else None
        elements = torch.empty(blocks.shape, dtype=self.element.code_dtype, device=x.device)
        scales = torch.empty(len(blocks), dtype=self.scale.code_dtype, device=x.device)
        for part, element_part, scale_part in self._pieces(blocks, elements, scales):
            numbers = part.float()
            scale_part.copy_(self._scales(numbers.abs().amax(-1), whole))
            factors = self._factors(scale_part, whole)
            # Where a scale is zero, so are the elements, and not 0 / 0.
            scaled = (numbers / factors).masked_fill_(factors == 0, 0.0)
            element_part.copy_(self.element.encode(scaled, rounding, overflow, generator))
        return BlockCodes(
            elements.view(x.shape), scales.view(*x.shape[:-1], x.shape[-1] // self.block), whole
        )

    def decode(self, codes: BlockCodes) -> Tensor:
        """Return the numbers [..., N] in fp32: elements times scales."""
        elements = codes.elements.reshape(-1, self.block)
        numbers = torch.empty(elements.shape, dtype=torch.float32, device=elements.device)
        for out, part, scales in self._pieces(numbers, elements, codes.scales.reshape(-1)):
            factors = self._factors(scales, codes.tensor_scale)
            torch.mul(self.element.decode(part), factors, out=out)
        return numbers.view(codes.elements.shape)

    def round(
        self, x: Tensor, rounding: str = "nearest", overflow: str = "saturate",
        generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """Return what `decode` makes of what `encode` keeps, in x's dtype and without gradient."""
        return self.decode(self.encode(x, rounding, overflow, generator)).to(x.dtype)

    def _pieces(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Give tensors whose first dim counts blocks in pieces, which on the CPU are small."""
        small = max(1, CHUNK // self.block)
        size = small if tensors[0].device.type == "cpu" else max(1, len(tensors[0]))
        return zip(*(tensor.split(size) for tensor in tensors))

    def _factors(self, scales: Tensor, whole: Tensor | None) -> Tensor:
        """Return what the elements of each block are multiplied by: [blocks, 1]."""
        factors = self.scale.decode(scales)
        return (factors if whole is None else factors * whole).unsqueeze(-1)

    def _scales(self, largest: Tensor, whole: Tensor | None) -> Tensor:
        """Return codes of the scales for the blocks' largest magnitudes."""
        if whole is None:
            return self._powers(largest)
        return self.scale.encode(largest / self.element.largest / whole)

    def _tensor_scale(self, x: Tensor) -> Tensor:
        """Return the scale with which the largest block gets the largest scale: [], fp32."""
        if not x.numel():
            return torch.ones((), device=x.device)
        smallest, largest = x.aminmax()
        limit = self.scale.largest * self.element.largest
        whole = torch.maximum(largest, -smallest).float() / limit
        return torch.where(whole == 0, 1.0, whole)

    def _powers(self, largest: Tensor) -> Tensor:
        """Return codes of powers of two for the blocks' largest magnitudes."""
        bits = largest.view(torch.int32)
        exponents = bits >> MANTISSA
        special = exponents == 255
        if self.rule == "even":
            exponents = (bits + (1 << (MANTISSA - self.element.mantissa - 1))) >> MANTISSA
        elif self.rule == "ceil":
            limit = torch.tensor(self.element.largest).view(torch.int32).item()
            exponents = exponents + ((bits & (2**MANTISSA - 1)) > (limit & (2**MANTISSA - 1))).int()
        emax = math.frexp(self.element.largest)[1] - 1
        codes = (exponents - emax).clamp(0, self.scale.largest_code)
        return codes.masked_fill(special, self.scale.nan_code).to(self.scale.code_dtype)

    def _check(self, numel: int) -> None:
        if numel % self.block:
            raise ValueError(
                f"The last dim has {numel} entries, and {self.name} needs whole blocks of "
                f"{self.block}."
            )


MXFP8 = BlockFormat("MXFP8", E4M3, E8M0, 32)
MXFP8_E5M2 = BlockFormat("MXFP8_E5M2", E5M2, E8M0, 32)
MXFP6 = BlockFormat("MXFP6", E2M3, E8M0, 32)
MXFP6_E3M2 = BlockFormat("MXFP6_E3M2", E3M2, E8M0, 32)
MXFP4 = BlockFormat("MXFP4", E2M1, E8M0, 32)
NVFP4 = BlockFormat("NVFP4", E2M1, E4M3, 16)
