"""Small floating-point formats for tensors: codes, rounding, and scales shared by blocks."""

from lib.single.formats.block_format import (
    MXFP4,
    MXFP6,
    MXFP6_E3M2,
    MXFP8,
    MXFP8_E5M2,
    NVFP4,
    BlockCodes,
    BlockFormat,
)
from lib.single.formats.float_format import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FP16,
    FP32,
    TF32,
    FloatFormat,
)

__all__ = ["BF16", "E2M1", "E2M3", "E3M2", "E4M3", "E5M2", "E8M0", "FP16", "FP32", "TF32"]
__all__ += ["MXFP4", "MXFP6", "MXFP6_E3M2", "MXFP8", "MXFP8_E5M2", "NVFP4"]
__all__ += ["BlockCodes", "BlockFormat", "FloatFormat"]
