"""The target `autofuse`: every operation is written as the rule calls it, from autofuse.ops.

Knows how arguments are passed on; the operations themselves are those of autofuse/ops/.
"""

from __future__ import annotations

from autofuse.ir.graph import ATTRIBUTE, ITEM, PARAMETER, Value, is_const
from autofuse.rule import Constant, Replacement
from autofuse.source.targets.call import Arguments, TargetCall, named
from autofuse.source.targets.express import Speller
from autofuse.source.targets.masks import is_causal, whole_mask_text
from autofuse.source.targets.norms import norm_input
from autofuse.source.targets.printing import literal_text

_NUMBERS = ("p", "eps", "training", "normalized_shape")


def autofuse_call(replacement: Replacement, captures: Arguments, s: Speller) -> TargetCall:
    written = norm_input(replacement.operation, captures, s)
    causal = replacement.operation == "attention" and is_causal(named(replacement, captures, s), s)
    arguments, gap = [], False
    for name, given in replacement.arguments:
        if causal and name in ("mask", "mask_is_causal"):
            arguments += ["is_causal=True"] if name == "mask" else []
            continue
        if isinstance(given, Constant):
            arguments.append(f"{name}={literal_text(given.value)}")
        elif given not in captures or name and is_const(captures[given], None):
            gap = gap or not name
        else:
            keyword = name or (given if gap else "")
            text = written if given == "x" and written else _text(replacement.operation, given, captures, s)
            arguments.append(f"{keyword}={text}" if keyword else text)
    function = s.imports.text(f"autofuse.ops.{replacement.operation}", s.place)
    return TargetCall(function, tuple(arguments), unsafe=bypassing(captures, s))


def _text(operation: str, name: str, captures: Arguments, s: Speller) -> str:
    if operation == "attention" and name == "mask":
        return whole_mask_text(captures[name], captures["query"], s)
    return s.text(captures[name])


def bypassing(captures: Arguments, s: Speller) -> str:
    """What is assumed where a parameter of a child is read without calling the child; "" where none is."""
    bypassed = next((t for v in captures.values() if (t := _child_parameter(v, s)) is not None), None)
    return f"reads {bypassed} past the module that owns it, whose hooks would not run" if bypassed else ""


def _child_parameter(v: Value, s: Speller) -> str | None:
    """The text of `v` if it is a tensor of a child's: self.fc1.weight."""
    if v.op != ATTRIBUTE or v.data in _NUMBERS or s.view.number(v):
        return None
    owner = v.inputs[0]
    return s.text(v) if owner.op in (ATTRIBUTE, ITEM) and owner.inputs[0].op in (PARAMETER, ATTRIBUTE) else None
