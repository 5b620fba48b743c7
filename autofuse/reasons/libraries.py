"""Reasons of targets (`--target`): the library that the call would be written with has no such operation."""

from __future__ import annotations

from autofuse.reasons.reason import Code

_ANOTHER = "pass another `--target`, or fuse the live model"
_AUTOFUSE = "pass `--target autofuse`, or fuse the live model with `autofuse.optimize`"

TORCH_LACKS = Code(
    "torch-lacks-operation",
    "`--target torch` is given, and torch has no such operation.",
    "torch has no {operation}: use autofuse.optimize(), or another `--target`, which has one",
    _AUTOFUSE,
)
TORCH_LOSS_SHAPE = Code(
    "torch-loss-shape",
    "torch's fused linear cross entropy gives no losses one by one.",
    "torch's linear_cross_entropy gives losses of another shape",
    _AUTOFUSE,
)
TORCH_LOSS_DTYPE = Code(
    "torch-loss-dtype",
    "The logits are cast to float32, which torch's fused linear cross entropy cannot do.",
    "torch's linear_cross_entropy has no way to cast the logits to float32",
    _AUTOFUSE,
)
TARGET_LACKS = Code(
    "target-lacks-operation",
    "The `--target` is a library that has other operations only.",
    "the target {target} writes {operations}, not {operation}",
    _ANOTHER,
)
EPS_IS_NONE = Code(
    "eps-is-none",
    "A norm is given `eps=None`, and the `--target` takes a number only.",
    "{library} norms take an eps that is a number; here it is None, which depends on the dtype",
    "give the norm its eps as a number",
)
FLASH_ATTN_MASK = Code(
    "flash-attn-mask",
    "`--target flash-attn` is given, and the attention has a mask that is not proved causal.",
    "flash_attn_func takes no mask: only one that is proved causal, of as many queries as keys, becomes `causal=True`",
    _ANOTHER,
)
FLASH_ATTN_DIMENSIONS = Code(
    "flash-attn-dimensions",
    "`--target flash-attn` is given, and the operands have other dimensions than it takes.",
    "flash_attn_func takes (batch, length, heads, head_dim); these have other dimensions",
    _ANOTHER,
)
LIGER_CLASS_WEIGHTS = Code(
    "liger-class-weights",
    "`--target liger` is given, and the cross entropy has weights of classes.",
    "Liger's cross entropy is not written with weights of classes",
    _ANOTHER,
)
LIGER_REDUCTION = Code(
    "liger-reduction",
    "`--target liger` is given, and the linear cross entropy is reduced to neither a mean nor a sum.",
    "Liger's fused linear cross entropy reduces to a mean or a sum",
    _ANOTHER,
)
LIGER_ROPE = Code(
    "liger-rope",
    "`--target liger` is given for a rotation of one tensor.",
    "Liger's rope turns a query and a key in one call, and in place: a single rotation cannot be written with it; use "
    "another `--target`",
    _ANOTHER,
)
LIGER_GATE = Code(
    "liger-gate",
    "`--target liger` is given, and the gate has an activation that Liger lacks.",
    "Liger gates by silu and by gelu's tanh approximation, not by {activation}",
    _ANOTHER,
)
LIGER_WEIGHT = Code(
    "liger-weight",
    "`--target liger` is given, and the norm lacks a weight or a bias, or has a number for one.",
    "Liger's {norm} wants a {name} that is a tensor",
    _ANOTHER,
)
APEX_AFFINE = Code(
    "apex-affine",
    "`--target apex` is given, and the layer norm has a weight and no bias, or the reverse.",
    "apex's layer norm takes a weight and a bias, or neither",
    _ANOTHER,
)
APEX_WEIGHT = Code(
    "apex-weight",
    "`--target apex` is given, and a number is given as the weight or the bias of a norm.",
    "apex's norms take a tensor as {name}, and this is a number",
    _ANOTHER,
)
APEX_CLASS_WEIGHTS = Code(
    "apex-class-weights",
    "`--target apex` is given, and the cross entropy has weights of classes.",
    "apex's cross entropy has no weights of classes",
    _ANOTHER,
)
APEX_IGNORED = Code(
    "apex-ignored-targets",
    "`--target apex` is given, and targets of the cross entropy may be ignored.",
    "apex's cross entropy keeps ignored targets in the mean, and looks up a class for each: whether any is ignored "
    "cannot be read from the text",
    _ANOTHER,
)
