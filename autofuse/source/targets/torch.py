"""The target `torch`: each operation as torch spells it, where torch has one. A rewritten file then needs torch alone.

Knows what torch's functions take; imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable

from autofuse.ir.graph import is_equal_const
from autofuse.ir.rows import Op
from autofuse.ir.vocabulary import OUR_ACTIVATIONS
from autofuse.source.targets.attention import attention
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.express import Speller
from autofuse.source.targets.losses import cross_entropy, linear_cross_entropy, log_likelihood
from autofuse.source.targets.norms import torch_norm


def _activation(op: Op) -> Callable[[Arguments, Speller], TargetCall]:
    """torch's function of the same name, with what the rule gives it besides the default."""

    def call(a: Arguments, s: Speller) -> TargetCall:
        given = [(name, a[name]) for name, default in op.options if name in a and not is_equal_const(a[name], default)]
        options = (f"{name}={s.text(v)}" for name, v in given)
        return TargetCall(s.imports.text(op.names[0], s.place), (s.text(a["x"]), *options))

    return call


def _glu(a: Arguments, s: Speller) -> TargetCall:
    return TargetCall(s.imports.text("torch.nn.functional.glu", s.place), (s.text(a["x"]), "dim=-1"))


OPERATIONS: dict[str, Callable[[Arguments, Speller], TargetCall]] = {
    "attention": attention,
    "cross_entropy": cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
    "log_likelihood": log_likelihood,
    "glu": _glu,
    "layer_norm": torch_norm("layer_norm"),
    "rms_norm": torch_norm("rms_norm"),
    **{name: _activation(op) for name, op in OUR_ACTIVATIONS.items()},
}

# torch has these only lately, and autofuse.ops has them for every torch: `auto` does not write them.
RECENT = frozenset({"linear_cross_entropy"})
