"""Reasons of targets (`--target`): the library of the target has no such operation."""

from __future__ import annotations

from autofuse.reasons.reason import Code

_ANOTHER = "pass another `--target`, or fuse the live model"
_AUTOFUSE = "pass `--target autofuse`, or fuse the live model with `autofuse.optimize`"

TORCH_LACKS = Code(
    "torch-lacks-operation",
    "The target is torch, and torch has no such operation.",
    "torch has no {operation}: use autofuse.optimize(), or a `--target` that has one",
    _AUTOFUSE,
)
TORCH_LOSS_SHAPE = Code(
    "torch-loss-shape",
    "The fused linear cross entropy of torch does not return one loss per target.",
    "torch's linear_cross_entropy gives losses of another shape",
    _AUTOFUSE,
)
TORCH_LOSS_DTYPE = Code(
    "torch-loss-dtype",
    "The logits are cast to float32, which torch's fused linear cross entropy cannot do.",
    "torch's linear_cross_entropy has no way to cast the logits to float32",
    _AUTOFUSE,
)
LOSS_WITHOUT_SCALE = Code(
    "loss-without-scale",
    "The logits are scaled or soft-capped, and the target's fused linear cross entropy cannot do that.",
    "{library} linear cross entropy cannot scale or cap the logits",
    _AUTOFUSE,
)
TARGET_LACKS = Code(
    "target-lacks-operation",
    "The library of the target has no such operation.",
    "the target {target} writes {operations}, not {operation}",
    _ANOTHER,
)
EPS_IS_NONE = Code(
    "eps-is-none",
    "A norm has `eps=None`, and the target needs a number.",
    "{library} norms need a number for eps; here it is None, which depends on the dtype",
    "pass eps as a number",
)
FLASH_ATTN_MASK = Code(
    "flash-attn-mask",
    "The target is flash-attn, and the attention has a mask that is not proved causal.",
    "flash_attn_func has no mask argument; only a causal mask with as many queries as keys becomes `causal=True`",
    _ANOTHER,
)
FLASH_ATTN_DIMENSIONS = Code(
    "flash-attn-dimensions",
    "The target is flash-attn, and the operands have other dimensions than it accepts.",
    "flash_attn_func takes (batch, length, heads, head_dim); these have other dimensions",
    _ANOTHER,
)
LIGER_CLASS_WEIGHTS = Code(
    "liger-class-weights",
    "The target is Liger, and the cross entropy has class weights.",
    "autofuse does not write Liger's cross entropy with class weights",
    _ANOTHER,
)
LIGER_REDUCTION = Code(
    "liger-reduction",
    "The target is Liger, and the linear cross entropy has another reduction than mean or sum.",
    "Liger's fused linear cross entropy has only the reductions mean and sum",
    _ANOTHER,
)
LIGER_ROPE = Code(
    "liger-rope",
    "The target is Liger, and the code rotates one tensor.",
    "Liger's rope rotates a query and a key in one call, and in place, so it cannot replace a single rotation; use "
    "another `--target`",
    _ANOTHER,
)
LIGER_GATE = Code(
    "liger-gate",
    "The target is Liger, and the gate has an activation that Liger lacks.",
    "Liger has gates with silu and with the tanh approximation of gelu, not with {activation}",
    _ANOTHER,
)
LIGER_WEIGHT = Code(
    "liger-weight",
    "The target is Liger, and the weight or the bias of the norm is missing or is a number.",
    "Liger's {norm} needs a tensor as {name}",
    _ANOTHER,
)
APEX_AFFINE = Code(
    "apex-affine",
    "The target is apex, and the layer norm has a weight and no bias, or a bias and no weight.",
    "apex's layer norm needs both a weight and a bias, or neither",
    _ANOTHER,
)
APEX_WEIGHT = Code(
    "apex-weight",
    "The target is apex, and the weight or the bias of a norm is a number.",
    "apex's norms need a tensor as {name}; here it is a number",
    _ANOTHER,
)
APEX_CLASS_WEIGHTS = Code(
    "apex-class-weights",
    "The target is apex, and the cross entropy has class weights.",
    "apex's cross entropy has no class weights",
    _ANOTHER,
)
APEX_IGNORED = Code(
    "apex-ignored-targets",
    "The target is apex, and the cross entropy may ignore some targets.",
    "apex's cross entropy counts ignored targets in the mean and looks up a class for each; the code does not show "
    "whether targets are ignored",
    _ANOTHER,
)
