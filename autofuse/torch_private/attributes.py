"""Private attributes of torch's objects: of which class, what for, and what happens if an object lacks one.

They are read directly, because a look-up would slow down each call. If a capture fails because of a missing one, its
module stays unchanged. If a guard fails, it counts as not fulfilled. The report lists both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PrivateAttribute(NamedTuple):
    """A private attribute.

    Attributes:
        of: the class, in words if it has no public name.
        use: what autofuse uses it for.
        missing: what happens if it is missing.
    """

    of: str
    use: str
    missing: str


_NOT_CAPTURED = "the module stays unchanged"
_NOT_SHARDED = "layers that FSDP shards stay unchanged"
_NO_PROFILE = "the profile ends with an AttributeError"
_MODULE = "torch.nn.Module"
_OVERLOAD, _NODE = "an operator's overload", "a node of autograd's graph"
_of = PrivateAttribute

# fmt: off
ATTRIBUTES: Mapping[str, PrivateAttribute] = {
    "_parameters": _of(_MODULE, "parameters by name, without a search; guards and the trace", _NOT_CAPTURED),
    "_buffers": _of(_MODULE, "buffers by name, without a search; guards and the trace", _NOT_CAPTURED),
    "_modules": _of(_MODULE, "children by name, without a search; guards and the trace", _NOT_CAPTURED),
    "_forward_hooks": _of(_MODULE, "whether hooks see a child's results", _NOT_CAPTURED),
    "_forward_pre_hooks": _of(_MODULE, "whether hooks see a child's arguments", _NOT_CAPTURED),
    "_backward_hooks": _of(_MODULE, "whether hooks see a child's gradients", _NOT_CAPTURED),
    "_backward_pre_hooks": _of(_MODULE, "whether hooks see a child's gradients", _NOT_CAPTURED),
    "_compiled_call_impl": _of(_MODULE, "whether Module.compile was called", "autofuse assumes that it was not"),
    "_orig_mod": _of("torch._dynamo.OptimizedModule", "the module inside", "the wrapper counts as the user's module"),
    "_fsdp_wrapped_module": _of("FullyShardedDataParallel", "the module inside",
        "the wrapper counts as the user's module"),
    "_checkpoint_wrapped_module": _of("the wrapper of activation checkpointing", "the module inside",
        "the wrapper counts as the user's module"),
    "_torchdynamo_orig_callable": _of("a compiled function", "the function inside",
        "autofuse.analysis(compiled) finds no places: pass the function"),
    "_version": _of("torch.Tensor", "whether a tensor was written to since", _NOT_CAPTURED),
    "_base": _of("torch.Tensor", "whether another object holds a mask's buffer", _NOT_CAPTURED),
    "_make_wrapper_subclass": _of("torch.Tensor", "a lazy tensor of a size", "no logits are lazy"),
    "_typed_storage": _of("torch.Tensor", "reads of a lazy tensor's memory", "no logits are lazy"),
    "_to_copy": _of("torch.ops.aten", "a cast of lazy logits", "no logits are lazy"),
    "_log_softmax": _of("torch.ops.aten", "log-probabilities of lazy logits", "no logits are lazy"),
    "_unsafe_view": _of("torch.ops.aten", "a reshape of lazy logits", "no logits are lazy"),
    "_is_view": _of("torch.Tensor", "recognizing the views that FSDP1 puts in place of parameters", _NOT_SHARDED),
    "_indices": _of("a sparse torch.Tensor", "its parts, coalesced or not", _NO_PROFILE),
    "_values": _of("a sparse torch.Tensor", "its parts, coalesced or not", _NO_PROFILE),
    "_cdata": _of("torch.UntypedStorage", "whether two tensors share memory", _NOT_CAPTURED),
    "_current_level": _of("torch.autograd.forward_ad", "whether forward-mode derivatives are computed",
        "see forward_ad in names.py"),
    "_schema": _of(_OVERLOAD, "its arguments, and which of them it writes", _NO_PROFILE),
    "_opname": _of(_OVERLOAD, "its name without the namespace", _NO_PROFILE),
    "_overloadpacket": _of(_OVERLOAD, "looking up its FLOP formula",
        "the operator counts as one without a formula"),
    "_qualified_op_name": _of("an operator's packet", "its name with the namespace", "its repr is used instead"),
    "_sequence_nr": _of(_NODE, "which forward pass it belongs to", _NO_PROFILE),
    "_saved_query": _of(_NODE, "attention's second derivative", "taking it ends with an AttributeError"),
    "_saved_key": _of(_NODE, "attention's second derivative", "taking it ends with an AttributeError"),
    "_saved_value": _of(_NODE, "attention's second derivative", "taking it ends with an AttributeError"),
    "_saved_is_causal": _of(_NODE, "attention's second derivative", "taking it ends with an AttributeError"),
    "_saved_scale": _of(_NODE, "attention's second derivative", "taking it ends with an AttributeError"),
    "_saved_attn_mask": _of(_NODE, "attention's second derivative, on a CPU", "autofuse assumes no mask"),
    "_saved_attn_bias": _of(_NODE, "attention's second derivative, in memory-efficient kernels",
        "autofuse assumes no mask"),
    "_saved_dropout_p": _of(_NODE, "whether weights were dropped",
        "autofuse assumes no dropout: kernels without dropout do not save it"),
    "_erased": _of("torch.fx.Node", "whether a node was erased", "autofuse assumes that it was not"),
    "_rename": _of("torch.fx.Node", "an unused name", _NOT_CAPTURED),
    "_num_workers": _of("a DataLoader's iterator", "whether batches are prefetched",
        "autofuse assumes that they are not"),
    "_auto_collation": _of("a DataLoader's iterator", "whether batches are the loader's own",
        "samples are not counted"),
    "_get_fsdp_state": _of("a module under fully_shard", "its groups of parameters", _NOT_SHARDED),
    "_fsdp_param_groups": _of("fully_shard's state", "its groups of parameters, since torch 2.12",
        "_fsdp_param_group is used"),
    "_fsdp_param_group": _of("fully_shard's state", "its group of parameters, before torch 2.10",
        "autofuse assumes no group"),
    "_module_info": _of("a parameter of fully_shard", "the module that owns it", _NOT_SHARDED),
    "_orig_size": _of("a parameter of fully_shard", "its unsharded size", _NOT_SHARDED),
    "_handle": _of("FullyShardedDataParallel", "its flat parameter", _NOT_SHARDED),
    "_fwd_bwd_param_dtype": _of("FSDP1's handle", "the dtype that layers see", _NOT_SHARDED),
    "_param_infos": _of("FSDP1's flat parameter", "the modules that own its parts", _NOT_SHARDED),
    "_shapes": _of("FSDP1's flat parameter", "the unsharded sizes of its parts", _NOT_SHARDED),
}
# fmt: on
