"""The target `apex`: norms and cross entropy as calls of NVIDIA apex.

- A norm takes both a weight and a bias, or neither.
- Cross entropy takes neither class weights nor ignored targets. Its `padding_idx` (default 0) sets losses to zero but
  counts them in the mean, so it is no replacement for torch's `ignore_index`.
"""

from __future__ import annotations

from autofuse.ir.graph import is_const
from autofuse.reasons import libraries, writing
from autofuse.reasons.reason import because
from autofuse.source.targets.call import Arguments, NotInTarget, TargetCall
from autofuse.source.targets.losses import flatten_logits
from autofuse.source.targets.printing import fill
from autofuse.source.targets.speller import Speller

_NORMS = "apex.normalization.fused_layer_norm"
_NEEDS = "the file then needs NVIDIA apex, compiled with its CUDA extensions, and tensors on CUDA devices"
_SAME_DTYPE_AND_SIZE = "assumes that weights have the dtype of the input and its last size"
_HALF_UNDER_AUTOCAST = "computes in half precision under autocast, where torch takes float32"
_UNUSED_CLASS = -100


def layer_norm(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of apex's layer norm. Raises NotInTarget if only one of weight and bias is there."""
    weight, bias = _tensor_text(args, "weight", speller), _tensor_text(args, "bias", speller)
    if (weight is None) != (bias is None):
        raise NotInTarget(because(libraries.APEX_AFFINE))
    affine = () if weight is None or bias is None else (weight, bias)
    return _norm("fused_layer_norm", affine, args, speller, "1e-05")


def rms_norm(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of apex's RMS norm."""
    weight = _tensor_text(args, "weight", speller)
    return _norm("fused_rms_norm", () if weight is None else (weight,), args, speller, "1e-06")


def _norm(name: str, affine: tuple[str, ...], args: Arguments, speller: Speller, default: str) -> TargetCall:
    if "eps" in args and is_const(args["eps"], None):
        raise NotInTarget(because(libraries.EPS_IS_NONE, library="apex's"))
    x = speller.text(args["x"])
    eps = speller.text(args["eps"]) if "eps" in args else default
    function = speller.imports.text(f"{_NORMS}.{name}_affine" if affine else f"{_NORMS}.{name}", speller.place)
    arguments = (x, *affine, fill("{0}.shape[-1:]", x), f"eps={eps}")
    why = f"{_NEEDS}; {_HALF_UNDER_AUTOCAST}"
    return TargetCall(function, arguments, unsafe=f"{why}; {_SAME_DTYPE_AND_SIZE}" if affine else why)


def _tensor_text(args: Arguments, name: str, speller: Speller) -> str | None:
    """The text of a weight; None if there is none. Raises NotInTarget if it is a number."""
    if name not in args or is_const(args[name], None):
        return None
    if speller.view.number(args[name]):
        raise NotInTarget(because(libraries.APEX_WEIGHT, name=name))
    return speller.text(args[name])


def cross_entropy(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of apex's SoftmaxCrossEntropyLoss. Raises NotInTarget if an option is not supported."""
    if "weight" in args and not is_const(args["weight"], None):
        raise NotInTarget(because(libraries.APEX_CLASS_WEIGHTS))
    if "ignore_index" not in args or not is_const(args["ignore_index"], None):  # torch's default ignores -100
        raise NotInTarget(because(libraries.APEX_IGNORED))
    reduction = args["reduction"].data if "reduction" in args and is_const(args["reduction"]) else "mean"
    if "reduction" in args and not is_const(args["reduction"]):
        raise NotInTarget(because(writing.REDUCTION_UNREAD, so=""))
    logits, target, tail = flatten_logits(args, speller)
    smoothing = speller.text(args["label_smoothing"]) if "label_smoothing" in args else "0.0"
    function = speller.imports.text("apex.contrib.xentropy.SoftmaxCrossEntropyLoss", speller.place)
    if reduction in ("mean", "sum"):
        tail = f"{tail}.{reduction}()"
    arguments = (logits, target, smoothing, str(_UNUSED_CLASS))
    why = f"{_NEEDS} (xentropy among them); assumes class indices, and logits in float32 or float16"
    return TargetCall(f"{function}.apply", arguments, tail, unsafe=why)


OPERATIONS = {"layer_norm": layer_norm, "rms_norm": rms_norm, "cross_entropy": cross_entropy}
