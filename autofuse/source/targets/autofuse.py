"""The target `autofuse`: each operation as a call of autofuse.ops, with the arguments of the rule."""

from __future__ import annotations

from autofuse.ir.graph import ATTRIBUTE, ITEM, PARAMETER, Value, is_const
from autofuse.rule import Constant, Replacement
from autofuse.source.targets.call import Arguments, TargetCall, arguments_by_name
from autofuse.source.targets.masks import is_causal, mask_text_for_ops
from autofuse.source.targets.norms import norm_input
from autofuse.source.targets.printing import literal_text
from autofuse.source.targets.speller import Speller

_NUMBERS = ("p", "eps", "training", "normalized_shape")


def autofuse_call(replacement: Replacement, captures: Arguments, speller: Speller) -> TargetCall:
    """Return a call of autofuse.ops.

    A missing optional argument makes the later positional arguments keyword arguments.
    """
    norm_input_text = norm_input(replacement.operation, captures, speller)
    causal = replacement.operation == "attention" and is_causal(
        arguments_by_name(replacement, captures, speller), speller
    )
    arguments, has_gap = [], False
    for name, source in replacement.arguments:
        if causal and name in ("mask", "mask_is_causal"):
            arguments += ["is_causal=True"] if name == "mask" else []
            continue
        if isinstance(source, Constant):
            arguments.append(f"{name}={literal_text(source.value)}")
        elif source not in captures or name and is_const(captures[source], None):
            has_gap = has_gap or not name
        else:
            keyword = name or (source if has_gap else "")
            text = (
                norm_input_text
                if source == "x" and norm_input_text
                else _text(replacement.operation, source, captures, speller)
            )
            arguments.append(f"{keyword}={text}" if keyword else text)
    function = speller.imports.text(f"autofuse.ops.{replacement.operation}", speller.place)
    return TargetCall(function, tuple(arguments), unsafe=bypass_assumption(captures, speller))


def _text(operation: str, name: str, captures: Arguments, speller: Speller) -> str:
    if operation == "attention" and name == "mask":
        return mask_text_for_ops(captures[name], captures["query"], speller)
    return speller.text(captures[name])


def bypass_assumption(captures: Arguments, speller: Speller) -> str:
    """The clause of a message if the edit reads a parameter of a child without calling the child; "" otherwise."""
    parameter = next((t for v in captures.values() if (t := _child_parameter(v, speller)) is not None), None)
    return f"reads {parameter} past the module that owns it, whose hooks would not run" if parameter else ""


def _child_parameter(v: Value, speller: Speller) -> str | None:
    """The text of `v` if it is a parameter of a child module: `self.fc1.weight`."""
    if v.op != ATTRIBUTE or v.data in _NUMBERS or speller.view.number(v):
        return None
    owner = v.inputs[0]
    return speller.text(v) if owner.op in (ATTRIBUTE, ITEM) and owner.inputs[0].op in (PARAMETER, ATTRIBUTE) else None
