"""Cross entropy on CPUs: losses or the gradient of the logits, from rows of logits that stay in the cache.

Measured on one thread, forward and backward of 256 rows of 16000 classes: 3.5 ms in fp32 (torch 5.6, torch.compile
5.5), 3.4 ms in bf16 (4.3 and 5.9).
"""

from __future__ import annotations

from autofuse.kernels import cross_entropy_formula as likelihoods
from autofuse.kernels.compiled_regions import region

losses = region(rows="logits target")(likelihoods.losses)
gradient = region(rows="logits target share normalizers")(likelihoods.gradient)
losses_and_gradient = region(rows="logits target share")(likelihoods.losses_and_gradient)
