"""Calls that the vocabulary does not name and that are known to have no side effects.

This file knows names. It does not know what the calls compute.
"""

from __future__ import annotations

# An unknown call may write its arguments, so it prevents a match. These calls do not.
HARMLESS = frozenset(
    """
    len range zip map list tuple int isinstance getattr hasattr min max enumerate reversed round abs sum
    torch.empty torch.eye torch.outer torch.polar
    torch.broadcast_to torch.repeat_interleave torch.meshgrid torch.sin torch.cos torch.clamp torch.abs
    torch.minimum torch.maximum
    torch.is_tensor torch.cumsum
    torch.nn.functional.pad torch.nn.functional.normalize
    torch.nn.functional.conv1d torch.nn.functional.conv2d torch.nn.functional.embedding
    einops.repeat einops.reduce einops.pack einops.unpack math.log math.exp math.ceil math.floor math.prod
    .repeat .repeat_interleave .int .item .sin .cos .clamp .t
    .cuda .cpu .new_zeros .new_ones .new_full .keys .items .values .get .index_select
    .any .all .argmax .narrow .roll .flip .movedim .cumsum .masked_select .numel .abs .min
    .diagonal .unfold .element_size .is_contiguous .clip .tolist
""".split()
)
_NO_TENSOR = frozenset(
    ".item .numel .element_size .is_contiguous .get .keys .items .values .tolist torch.is_tensor".split()
)
# Calls that return a tensor or several tensors.
TENSOR_CALLS = frozenset(n for n in HARMLESS if n.startswith((".", "torch."))) - _NO_TENSOR
