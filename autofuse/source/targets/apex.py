"""The target `apex`: norms and cross entropy as NVIDIA apex spells them.

Knows what apex's functions take: a weight and a bias, or neither; and for its loss neither class weights nor ignored
targets, for `padding_idx` (0 unless another is given) clears losses but stays in the mean.
"""

from __future__ import annotations

from autofuse.ir.graph import is_const
from autofuse.reasons import libraries, writing
from autofuse.reasons.reason import because
from autofuse.source.targets.call import Arguments, NotInTarget, TargetCall
from autofuse.source.targets.express import Speller
from autofuse.source.targets.losses import rows
from autofuse.source.targets.printing import fill

_NORMS = "apex.normalization.fused_layer_norm"
_NEEDS = "the file then needs NVIDIA apex, compiled with its CUDA extensions, and tensors on CUDA devices"
_ALIKE = "assumes that weights have the dtype of the input and its last size"
_HALVES = "computes in half precision under autocast, where torch takes float32"
_NO_CLASS = -100


def layer_norm(a: Arguments, s: Speller) -> TargetCall:
    weight, bias = _given(a, "weight", s), _given(a, "bias", s)
    if (weight is None) != (bias is None):
        raise NotInTarget(because(libraries.APEX_AFFINE))
    affine = () if weight is None or bias is None else (weight, bias)
    return _norm("fused_layer_norm", affine, a, s, "1e-05")


def rms_norm(a: Arguments, s: Speller) -> TargetCall:
    weight = _given(a, "weight", s)
    return _norm("fused_rms_norm", () if weight is None else (weight,), a, s, "1e-06")


def _norm(name: str, affine: tuple[str, ...], a: Arguments, s: Speller, default: str) -> TargetCall:
    if "eps" in a and is_const(a["eps"], None):
        raise NotInTarget(because(libraries.EPS_IS_NONE, library="apex's"))
    x = s.text(a["x"])
    eps = s.text(a["eps"]) if "eps" in a else default
    function = s.imports.text(f"{_NORMS}.{name}_affine" if affine else f"{_NORMS}.{name}", s.place)
    arguments = (x, *affine, fill("{0}.shape[-1:]", x), f"eps={eps}")
    why = f"{_NEEDS}; {_HALVES}"
    return TargetCall(function, arguments, unsafe=f"{why}; {_ALIKE}" if affine else why)


def _given(a: Arguments, name: str, s: Speller) -> str | None:
    """A weight as text, None where there is none."""
    if name not in a or is_const(a[name], None):
        return None
    if s.view.number(a[name]):
        raise NotInTarget(because(libraries.APEX_WEIGHT, name=name))
    return s.text(a[name])


def cross_entropy(a: Arguments, s: Speller) -> TargetCall:
    if "weight" in a and not is_const(a["weight"], None):
        raise NotInTarget(because(libraries.APEX_CLASS_WEIGHTS))
    if "ignore_index" not in a or not is_const(a["ignore_index"], None):  # left out, it is torch's -100
        raise NotInTarget(because(libraries.APEX_IGNORED))
    reduction = a["reduction"].data if "reduction" in a and is_const(a["reduction"]) else "mean"
    if "reduction" in a and not is_const(a["reduction"]):
        raise NotInTarget(because(writing.REDUCTION_UNREAD, so=""))
    logits, target, tail = rows(a, s)
    smoothing = s.text(a["label_smoothing"]) if "label_smoothing" in a else "0.0"
    function = s.imports.text("apex.contrib.xentropy.SoftmaxCrossEntropyLoss", s.place)
    if reduction in ("mean", "sum"):
        tail = f"{tail}.{reduction}()"
    arguments = (logits, target, smoothing, str(_NO_CLASS))
    why = f"{_NEEDS} (xentropy among them); assumes class indices, and logits in float32 or float16"
    return TargetCall(f"{function}.apply", arguments, tail, unsafe=why)


OPERATIONS = {"layer_norm": layer_norm, "rms_norm": rms_norm, "cross_entropy": cross_entropy}
