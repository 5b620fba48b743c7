"""Cross entropy on CPUs: rows of logits in, losses or the gradient of the logits out, each row read while in cache.

Measured on one thread, forward and backward of 256 rows of 16000 classes: 3.5 ms in fp32 (torch 5.6, under
torch.compile 5.5), 3.4 in bf16 (4.3 and 5.9).
"""

from __future__ import annotations

from autofuse.kernels import cross_entropy_formula as likelihoods
from autofuse.kernels.compiled_regions import region

losses = region(rows="logits target")(likelihoods.losses)
gradient = region(rows="logits target share normalizers")(likelihoods.gradient)
losses_and_gradient = region(rows="logits target share")(likelihoods.losses_and_gradient)
