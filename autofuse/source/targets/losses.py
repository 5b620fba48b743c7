"""Cross entropy as torch calls, which need the classes in the second dimension."""

from __future__ import annotations

from autofuse.ir.graph import is_const
from autofuse.reasons import libraries, writing
from autofuse.reasons.reason import because
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.printing import fill
from autofuse.source.targets.speller import Speller, Unwritable

_OPTIONS = ("weight", "ignore_index", "reduction", "label_smoothing")


def cross_entropy(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of F.cross_entropy; if the classes are in the last dimension, the logits are flattened to rows."""
    logits, target, tail = flatten_logits(args, speller)
    options = keyword_options(args, speller, _OPTIONS)
    return TargetCall(
        speller.imports.text("torch.nn.functional.cross_entropy", speller.place), (logits, target, *options), tail
    )


def flatten_logits(args: Arguments, speller: Speller) -> tuple[str, str, str]:
    """Return the texts of the logits with the classes in the second dimension, of their targets, and after the call.

    The third text restores the shape of a loss without reduction.

    Raises:
        Unwritable: the classes are in another dimension, or the reduction is unknown.
    """
    logits, target, tail = speller.text(args["logits"]), speller.text(args["target"]), ""
    rank, dim = speller.view.rank(args["logits"]), args["dim"].data if "dim" in args else 1
    if dim == 1 or rank is not None and type(dim) is int and dim % rank == (1 if rank > 1 else 0):
        return logits, target, tail
    if dim != -1:
        raise Unwritable(because(writing.CLASSES_NOT_LAST))
    if rank != 2:
        if "reduction" in args and not is_const(args["reduction"]):
            raise Unwritable(because(writing.REDUCTION_UNREAD, so=", and so its shape,"))
        logits = _flatten_rows(logits)
        if "reduction" in args and is_const(args["reduction"], "none") and speller.view.rank(args["target"]) != 1:
            tail = f".view({fill('{0}.shape', target)})"
        target = target if speller.view.rank(args["target"]) == 1 else fill("{0}.reshape(-1)", target)
    return logits, target, tail


def _flatten_rows(logits: str) -> str:
    if logits.isidentifier():
        return f"{logits}.reshape(-1, {logits}.shape[-1])"
    return fill("{0}.flatten(0, -2)", logits)


def linear_cross_entropy(args: Arguments, speller: Speller) -> TargetCall:
    """Write a call of F.linear_cross_entropy. Without `options` it would still compute all logits at once."""
    if "reduction" in args and not is_const(args["reduction"], "mean", "sum"):
        raise Unwritable(because(libraries.TORCH_LOSS_SHAPE))
    if "in_float32" in args:
        raise Unwritable(because(libraries.TORCH_LOSS_DTYPE))
    if "scale" in args or "soft_cap" in args:
        raise Unwritable(because(libraries.LOSS_WITHOUT_SCALE, library="torch's"))
    x, target = flatten_linear_inputs(args, speller)
    bias = [f"linear_bias={speller.text(args['bias'])}"] if "bias" in args and not is_const(args["bias"], None) else []
    chunks = f"options={speller.imports.text('torch.nn.LinearCrossEntropyOptions', speller.place)}()"
    function = speller.imports.text("torch.nn.functional.linear_cross_entropy", speller.place)
    arguments = (x, speller.text(args["weight"]), target, *bias, *keyword_options(args, speller, _OPTIONS[1:]), chunks)
    return TargetCall(function, arguments, unsafe="needs torch 2.13 or later, and runs no hooks of the layer")


def flatten_linear_inputs(args: Arguments, speller: Speller) -> tuple[str, str]:
    """Return the texts of the layer's input as rows, and of the targets of these rows."""
    x, target = speller.text(args["x"]), speller.text(args["target"])
    x = x if speller.view.rank(args["x"]) == 2 else fill("{0}.flatten(0, -2)", x)
    return x, target if speller.view.rank(args["target"]) == 1 else fill("{0}.reshape(-1)", target)


def keyword_options(args: Arguments, speller: Speller, names: tuple[str, ...]) -> list[str]:
    """Return the texts of the options that the code passes, as keyword arguments."""
    return [f"{n}={speller.text(args[n])}" for n in names if n in args and not is_const(args[n], None)]
