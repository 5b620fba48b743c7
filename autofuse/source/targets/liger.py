"""The target `liger`: norms, gated activations and losses as Liger spells them.

Knows what the functions of liger_kernel.transformers.functional take (version 0.8.5), and what they overwrite:
`in_place=False` is written wherever there is a choice, and cross entropy and gates get copies, in which they leave
gradients, where others may have kept the operands.
"""

from __future__ import annotations

from autofuse.ir.graph import is_const
from autofuse.reasons import libraries
from autofuse.reasons.reason import because
from autofuse.source.targets.call import Arguments, NotInTarget, TargetCall
from autofuse.source.targets.express import Speller
from autofuse.source.targets.losses import linear_rows, options_of, rows
from autofuse.source.targets.printing import fill

_FUNCTIONS = "liger_kernel.transformers.functional"
_NEEDS = "the file then needs liger-kernel, and tensors on CUDA devices"
_ALIKE = "assumes that weights have the dtype of the input and its last size"
_GATES = {"silu": "liger_swiglu", "gelu_tanh": "liger_geglu"}
_LOSS_OPTIONS = ("ignore_index", "reduction", "label_smoothing")
_ONCE = "assumes that the backward pass runs through it once (it overwrites what it kept)"
_ALL_IGNORED = "assumes class indices, of which some are not ignored (it gives 0 and not nan where all are)"


def rms_norm(a: Arguments, s: Speller) -> TargetCall:
    weight = _tensor(a, "weight", "rms_norm", s)
    arguments = (s.text(a["x"]), weight, f"eps={_eps(a, s, '1e-06')}", "in_place=False")
    return TargetCall(_function("liger_rms_norm", s), arguments, unsafe=f"{_NEEDS}; {_ALIKE}")


def layer_norm(a: Arguments, s: Speller) -> TargetCall:
    affine = (_tensor(a, "weight", "layer_norm", s), _tensor(a, "bias", "layer_norm", s))
    arguments = (s.text(a["x"]), *affine, _eps(a, s, "1e-05"))
    return TargetCall(_function("liger_layer_norm", s), arguments, unsafe=f"{_NEEDS}; {_ALIKE}")


def gated_product(a: Arguments, s: Speller) -> TargetCall:
    """Of copies: it writes gradients over gate and up, of which others may have kept one."""
    arguments = tuple(fill("{0}.clone()", s.text(a[name])) for name in ("gate", "up"))
    return TargetCall(_gate(a, s), arguments, unsafe=f"{_NEEDS}; {_ONCE}")


def gated_activation(a: Arguments, s: Speller) -> TargetCall:
    halves = fill("{0}.chunk(2, -1)", s.text(a["x"]))
    reverse = "gate_first" in a and is_const(a["gate_first"], False)
    return TargetCall(_gate(a, s), (f"*{halves}[::-1]" if reverse else f"*{halves}",), unsafe=f"{_NEEDS}; {_ONCE}")


def gated_mlp(a: Arguments, s: Speller) -> TargetCall:
    """Both projections, and Liger's product of what they give."""
    linear = s.imports.text("torch.nn.functional.linear", s.place)
    x, projections = s.text(a["x"]), []
    for name in ("gate", "up"):
        bias = a.get(f"{name}_bias")
        rest = "" if bias is None or is_const(bias, None) else f", {s.text(bias)}"
        projections.append(f"{linear}({x}, {s.text(a[f'{name}_weight'])}{rest})")
    why = f"{_NEEDS}; {_ONCE}; reads weights past the layers that own them, whose hooks would not run"
    return TargetCall(_gate(a, s), tuple(projections), unsafe=why)


def cross_entropy(a: Arguments, s: Speller) -> TargetCall:
    if "weight" in a and not is_const(a["weight"], None):
        raise NotInTarget(because(libraries.LIGER_CLASS_WEIGHTS))
    logits, target, tail = rows(a, s)
    arguments = (fill("{0}.clone()", logits), target, *options_of(a, s, _LOSS_OPTIONS))
    why = f"{_NEEDS}; {_ONCE}; {_ALL_IGNORED}"
    return TargetCall(_function("liger_cross_entropy", s), arguments, tail, unsafe=why)


def linear_cross_entropy(a: Arguments, s: Speller) -> TargetCall:
    if "reduction" in a and not is_const(a["reduction"], "mean", "sum"):
        raise NotInTarget(because(libraries.LIGER_REDUCTION))
    x, target = linear_rows(a, s)
    bias = [f"bias={s.text(a['bias'])}"] if "bias" in a and not is_const(a["bias"], None) else []
    arguments = (x, s.text(a["weight"]), target, *bias, *options_of(a, s, _LOSS_OPTIONS))
    why = f"{_NEEDS}; {_ONCE}; {_ALL_IGNORED}; runs no hooks of the layer, and gives the loss in float32"
    return TargetCall(_function("liger_fused_linear_cross_entropy", s), arguments, unsafe=why)


def rotary(a: Arguments, s: Speller) -> TargetCall:
    raise NotInTarget(because(libraries.LIGER_ROPE))


def _function(name: str, s: Speller) -> str:
    return s.imports.text(f"{_FUNCTIONS}.{name}", s.place)


def _gate(a: Arguments, s: Speller) -> str:
    """Liger's function for the activation of the gate."""
    activation = a["activation"].data if "activation" in a else None
    if not isinstance(activation, str) or activation not in _GATES:
        what = activation if isinstance(activation, str) else "one that cannot be read from the text"
        raise NotInTarget(because(libraries.LIGER_GATE, activation=what))
    return _function(_GATES[activation], s)


def _tensor(a: Arguments, name: str, norm: str, s: Speller) -> str:
    if name not in a or is_const(a[name], None) or s.view.number(a[name]):
        raise NotInTarget(because(libraries.LIGER_WEIGHT, norm=norm, name=name))
    return s.text(a[name])


def _eps(a: Arguments, s: Speller, default: str) -> str:
    if "eps" not in a:
        return default
    if is_const(a["eps"], None):
        raise NotInTarget(because(libraries.EPS_IS_NONE, library="Liger's"))
    return s.text(a["eps"])


OPERATIONS = {
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "gated_product": gated_product,
    "gated_activation": gated_activation,
    "gated_mlp": gated_mlp,
    "cross_entropy": cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
    "rotary": rotary,
}
