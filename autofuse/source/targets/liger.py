"""The target `liger`: norms, gated activations and losses as calls of Liger.

The functions are those of liger_kernel.transformers.functional (version 0.8.5). Some of them overwrite their inputs.
`in_place=False` is passed if the function has that argument. Cross entropy and the gated activations write gradients
into their inputs, so they get copies, because other code may still use the originals.
"""

from __future__ import annotations

from autofuse.ir.graph import is_const
from autofuse.reasons import libraries
from autofuse.reasons.reason import because
from autofuse.source.targets.call import Arguments, NotInTarget, TargetCall
from autofuse.source.targets.losses import flatten_linear_inputs, flatten_logits, keyword_options
from autofuse.source.targets.printing import fill
from autofuse.source.targets.speller import Speller

_FUNCTIONS = "liger_kernel.transformers.functional"
_NEEDS = "the file then needs liger-kernel, and tensors on CUDA devices"
_SAME_DTYPE_AND_SIZE = "assumes that weights have the dtype of the input and its last size"
_GATES = {"silu": "liger_swiglu", "gelu_tanh": "liger_geglu"}
_LOSS_OPTIONS = ("ignore_index", "reduction", "label_smoothing")
_ONCE = "assumes that the backward pass runs once (Liger overwrites the tensors that it saved)"
_ALL_IGNORED = (
    "assumes class indices, and at least one target that is not ignored (Liger returns 0 where torch returns nan)"
)


def rms_norm(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of Liger's RMS norm."""
    weight = _tensor_text(args, "weight", "rms_norm", speller)
    arguments = (speller.text(args["x"]), weight, f"eps={_eps_text(args, speller, '1e-06')}", "in_place=False")
    return TargetCall(_function_text("liger_rms_norm", speller), arguments, unsafe=f"{_NEEDS}; {_SAME_DTYPE_AND_SIZE}")


def layer_norm(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of Liger's layer norm."""
    affine = (_tensor_text(args, "weight", "layer_norm", speller), _tensor_text(args, "bias", "layer_norm", speller))
    arguments = (speller.text(args["x"]), *affine, _eps_text(args, speller, "1e-05"))
    return TargetCall(
        _function_text("liger_layer_norm", speller), arguments, unsafe=f"{_NEEDS}; {_SAME_DTYPE_AND_SIZE}"
    )


def gated_product(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of a gated product of copies.

    Liger writes gradients over gate and up, and other code may still use these.
    """
    arguments = tuple(fill("{0}.clone()", speller.text(args[name])) for name in ("gate", "up"))
    return TargetCall(_gate_function(args, speller), arguments, unsafe=f"{_NEEDS}; {_ONCE}")


def gated_activation(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of a gated product of the two halves of the input."""
    halves = fill("{0}.chunk(2, -1)", speller.text(args["x"]))
    reverse = "gate_first" in args and is_const(args["gate_first"], False)
    return TargetCall(
        _gate_function(args, speller), (f"*{halves}[::-1]" if reverse else f"*{halves}",), unsafe=f"{_NEEDS}; {_ONCE}"
    )


def gated_mlp(args: Arguments, speller: Speller) -> TargetCall:
    """Write both projections and Liger's gated product of their results."""
    linear = speller.imports.text("torch.nn.functional.linear", speller.place)
    x, projections = speller.text(args["x"]), []
    for name in ("gate", "up"):
        bias = args.get(f"{name}_bias")
        bias_argument = "" if bias is None or is_const(bias, None) else f", {speller.text(bias)}"
        projections.append(f"{linear}({x}, {speller.text(args[f'{name}_weight'])}{bias_argument})")
    assumptions = f"{_NEEDS}; {_ONCE}; reads weights past the layers that own them, whose hooks would not run"
    return TargetCall(_gate_function(args, speller), tuple(projections), unsafe=assumptions)


def cross_entropy(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of Liger's cross entropy. Raises NotInTarget for class weights."""
    if "weight" in args and not is_const(args["weight"], None):
        raise NotInTarget(because(libraries.LIGER_CLASS_WEIGHTS))
    logits, target, tail = flatten_logits(args, speller)
    arguments = (fill("{0}.clone()", logits), target, *keyword_options(args, speller, _LOSS_OPTIONS))
    assumptions = f"{_NEEDS}; {_ONCE}; {_ALL_IGNORED}"
    return TargetCall(_function_text("liger_cross_entropy", speller), arguments, tail, unsafe=assumptions)


def linear_cross_entropy(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of Liger's linear layer with cross entropy. Raises NotInTarget for another reduction."""
    if "reduction" in args and not is_const(args["reduction"], "mean", "sum"):
        raise NotInTarget(because(libraries.LIGER_REDUCTION))
    if "scale" in args or "soft_cap" in args:
        raise NotInTarget(because(libraries.LOSS_WITHOUT_SCALE, library="Liger's"))
    x, target = flatten_linear_inputs(args, speller)
    bias = [f"bias={speller.text(args['bias'])}"] if "bias" in args and not is_const(args["bias"], None) else []
    arguments = (x, speller.text(args["weight"]), target, *bias, *keyword_options(args, speller, _LOSS_OPTIONS))
    assumptions = f"{_NEEDS}; {_ONCE}; {_ALL_IGNORED}; runs no hooks of the layer, and gives the loss in float32"
    return TargetCall(_function_text("liger_fused_linear_cross_entropy", speller), arguments, unsafe=assumptions)


def rotary(args: Arguments, speller: Speller) -> TargetCall:
    """Raise NotInTarget: Liger's rotary embedding takes other arguments."""
    raise NotInTarget(because(libraries.LIGER_ROPE))


def _function_text(name: str, speller: Speller) -> str:
    return speller.imports.text(f"{_FUNCTIONS}.{name}", speller.place)


def _gate_function(args: Arguments, speller: Speller) -> str:
    """The text of Liger's function for the activation of the gate. Raises NotInTarget if there is none."""
    activation = args["activation"].data if "activation" in args else None
    if not isinstance(activation, str) or activation not in _GATES:
        name = activation if isinstance(activation, str) else "one that cannot be read from the text"
        raise NotInTarget(because(libraries.LIGER_GATE, activation=name))
    return _function_text(_GATES[activation], speller)


def _tensor_text(args: Arguments, name: str, norm: str, speller: Speller) -> str:
    if name not in args or is_const(args[name], None) or speller.view.number(args[name]):
        raise NotInTarget(because(libraries.LIGER_WEIGHT, norm=norm, name=name))
    return speller.text(args[name])


def _eps_text(args: Arguments, speller: Speller, default: str) -> str:
    if "eps" not in args:
        return default
    if is_const(args["eps"], None):
        raise NotInTarget(because(libraries.EPS_IS_NONE, library="Liger's"))
    return speller.text(args["eps"])


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
