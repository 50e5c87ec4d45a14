"""Compression of gradients: top-k, quantization, sign, PowerSGD, and a smaller number format.

    p_r [N] on rank r: its gradients, and with error feedback also its residual
    c_r [N] is what r's message encodes;  every rank gets 1/n · Σ c_r;  p_r - c_r stays on r

[Note: error feedback]
If the small entries of every gradient were dropped, their sum over many steps would be lost.
Instead, each rank keeps what it did not send, the residual, and adds it to the next gradient. Small
entries then arrive late, but everything that was sent and the residual always add up to the sum of
all gradients. Quantization with stochastic rounding needs no feedback, because it is unbiased. A
gradient that is not finite would stay in the residual, so skip such a step before it is sent.

[Note: sums and gathers]
Two messages of top-k, signs or codes cannot be summed into one, so all messages go to all ranks,
and each rank receives more the more ranks there are. PowerSGD is linear in the gradients, so an
all_reduce can sum its factors. lib/predict/data/compression.py has the exact bytes and the sources.
"""

from lib.parallel.data.compressors.cast import Cast
from lib.parallel.data.compressors.gathered import Quantized, Sign, TopK
from lib.parallel.data.compressors.power_sgd import PowerSGD

__all__ = ["Cast", "PowerSGD", "Quantized", "Sign", "TopK"]
