"""The target `torch`: each operation as a call of torch. A rewritten file then needs only torch."""

from __future__ import annotations

from collections.abc import Callable

from autofuse.ir.graph import is_equal_const
from autofuse.ir.rows import Op
from autofuse.ir.vocabulary import OUR_ACTIVATIONS
from autofuse.source.targets.attention import attention
from autofuse.source.targets.call import Arguments, TargetCall
from autofuse.source.targets.losses import (
    cross_entropy,
    linear_cross_entropy,
)
from autofuse.source.targets.norms import torch_norm
from autofuse.source.targets.speller import Speller


def _activation(op: Op) -> Callable[[Arguments, Speller], TargetCall]:
    """Return the function that writes an activation, with the options that differ from torch's defaults."""

    def call(args: Arguments, speller: Speller) -> TargetCall:
        passed = [
            (name, args[name])
            for name, default in op.options
            if name in args and not is_equal_const(args[name], default)
        ]
        options = (f"{name}={speller.text(v)}" for name, v in passed)
        return TargetCall(speller.imports.text(op.names[0], speller.place), (speller.text(args["x"]), *options))

    return call


def _glu(args: Arguments, speller: Speller) -> TargetCall:
    return TargetCall(
        speller.imports.text("torch.nn.functional.glu", speller.place), (speller.text(args["x"]), "dim=-1")
    )


OPERATIONS: dict[str, Callable[[Arguments, Speller], TargetCall]] = {
    "attention": attention,
    "cross_entropy": cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
    "glu": _glu,
    "layer_norm": torch_norm("layer_norm"),
    "rms_norm": torch_norm("rms_norm"),
    **{name: _activation(op) for name, op in OUR_ACTIVATIONS.items()},
}

# Only recent versions of torch have these operations. autofuse.ops has them for every version, so `auto` uses that.
RECENT = frozenset({"linear_cross_entropy"})
