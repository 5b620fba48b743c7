"""Cross entropy as torch spells it, for which the classes must be in the second dimension.

Knows what torch's functions take and what its versions have.
"""

from __future__ import annotations

from autofuse.ir.graph import is_const
from autofuse.reasons import libraries, writing
from autofuse.reasons.reason import because
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.express import Speller, Unwritable
from autofuse.source.targets.printing import fill

_OPTIONS = ("weight", "ignore_index", "reduction", "label_smoothing")


def cross_entropy(a: Arguments, s: Speller) -> TargetCall:
    """F.cross_entropy; where the classes lie elsewhere, of one row after the other."""
    logits, target, tail = rows(a, s)
    options = options_of(a, s, _OPTIONS)
    return TargetCall(s.imports.text("torch.nn.functional.cross_entropy", s.place), (logits, target, *options), tail)


def rows(a: Arguments, s: Speller) -> tuple[str, str, str]:
    """Logits with the classes in the second dimension, their targets, and what follows the loss."""
    logits, target, tail = s.text(a["logits"]), s.text(a["target"]), ""
    rank, dim = s.view.rank(a["logits"]), a["dim"].data if "dim" in a else 1
    if dim == 1 or rank is not None and type(dim) is int and dim % rank == (1 if rank > 1 else 0):
        return logits, target, tail
    if dim != -1:
        raise Unwritable(because(writing.CLASSES_NOT_LAST))
    if rank != 2:
        if "reduction" in a and not is_const(a["reduction"]):
            raise Unwritable(because(writing.REDUCTION_UNREAD, so=", and so its shape,"))
        logits = _flat(logits)
        if "reduction" in a and is_const(a["reduction"], "none") and s.view.rank(a["target"]) != 1:
            tail = f".view({fill('{0}.shape', target)})"
        target = target if s.view.rank(a["target"]) == 1 else fill("{0}.reshape(-1)", target)
    return logits, target, tail


def _flat(logits: str) -> str:
    if logits.isidentifier():
        return f"{logits}.reshape(-1, {logits}.shape[-1])"
    return fill("{0}.flatten(0, -2)", logits)


def log_likelihood(a: Arguments, s: Speller) -> TargetCall:
    made = cross_entropy(a, s)
    return TargetCall(made.function, made.arguments, f"{made.tail}.neg()")


def linear_cross_entropy(a: Arguments, s: Speller) -> TargetCall:
    """F.linear_cross_entropy, which without `options` would still form all logits."""
    if "reduction" in a and not is_const(a["reduction"], "mean", "sum"):
        raise Unwritable(because(libraries.TORCH_LOSS_SHAPE))
    if "in_float32" in a:
        raise Unwritable(because(libraries.TORCH_LOSS_DTYPE))
    x, target = linear_rows(a, s)
    bias = [f"linear_bias={s.text(a['bias'])}"] if "bias" in a and not is_const(a["bias"], None) else []
    chunks = f"options={s.imports.text('torch.nn.LinearCrossEntropyOptions', s.place)}()"
    function = s.imports.text("torch.nn.functional.linear_cross_entropy", s.place)
    arguments = (x, s.text(a["weight"]), target, *bias, *options_of(a, s, _OPTIONS[1:]), chunks)
    return TargetCall(function, arguments, unsafe="needs torch 2.13 or later, and runs no hooks of the layer")


def linear_rows(a: Arguments, s: Speller) -> tuple[str, str]:
    """What the layer takes, one row after the other, and the targets of the rows."""
    x, target = s.text(a["x"]), s.text(a["target"])
    x = x if s.view.rank(a["x"]) == 2 else fill("{0}.flatten(0, -2)", x)
    return x, target if s.view.rank(a["target"]) == 1 else fill("{0}.reshape(-1)", target)


def options_of(a: Arguments, s: Speller, names: tuple[str, ...]) -> list[str]:
    return [f"{n}={s.text(a[n])}" for n in names if n in a and not is_const(a[n], None)]
