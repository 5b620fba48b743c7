"""Writes the semantic operations of the rules for each target.

- `auto` (default): calls torch if torch has the operation. Otherwise it calls autofuse.ops, and the edit is `unsafe`,
  because the file then needs autofuse where it runs.
- `torch`: calls only torch.
- `autofuse`: always calls autofuse.ops.
- `flash-attn`, `apex`, `liger`: call these libraries, so that the dependency is visible in the file. An edit is
  declined with a reason if the library does not accept the arguments. Every other edit is `unsafe`, because the text
  does not show dtypes and devices.

This file chooses the target; each other file knows one. Nothing here reads a syntax tree or edits a file.
"""

from __future__ import annotations

from dataclasses import replace

from autofuse.reasons import libraries
from autofuse.reasons.reason import because
from autofuse.results.target_names import DEFAULT, TARGETS
from autofuse.rule import Replacement
from autofuse.source.targets import apex, flash_attn, liger
from autofuse.source.targets.autofuse import autofuse_call
from autofuse.source.targets.call import Arguments, NotInTarget, TargetCall, arguments_by_name
from autofuse.source.targets.expression import expression_call
from autofuse.source.targets.speller import Speller
from autofuse.source.targets.torch import OPERATIONS, RECENT

__all__ = ["DEFAULT", "TARGETS", "NotInTarget", "TargetCall", "call_of"]

_LIBRARIES = {"flash-attn": flash_attn.OPERATIONS, "apex": apex.OPERATIONS, "liger": liger.OPERATIONS}
_ALWAYS_THERE = ("torch", "math")  # packages that need no message, since a file that computes with torch has them
_NEEDS_AUTOFUSE = "the file then needs autofuse where it runs"


def call_of(target: str, replacement: Replacement, captures: Arguments, speller: Speller) -> TargetCall:
    """Return the call that replaces a site.

    Args:
        target: the name of the target.
        replacement: the rule's `after`.
        captures: the captured value of each argument.
        speller: writes values as text.

    Raises:
        NotInTarget: the target has no such operation.
        Unwritable: an argument is not available at the position of the call.
    """
    if replacement.expression is not None and target in (DEFAULT, "torch", "autofuse"):
        return _imported_call(target, replacement, captures, speller)
    if target == "autofuse":
        return autofuse_call(replacement, captures, speller)
    if target in _LIBRARIES:
        return _library_call(target, replacement, captures, speller)
    if replacement.operation in OPERATIONS and (target == "torch" or replacement.operation not in RECENT):
        return OPERATIONS[replacement.operation](arguments_by_name(replacement, captures, speller), speller)
    if target == "torch":
        raise NotInTarget(because(libraries.TORCH_LACKS, operation=replacement.operation))
    call = autofuse_call(replacement, captures, speller)
    return replace(call, unsafe="; ".join(filter(None, (_NEEDS_AUTOFUSE, call.unsafe))))


def _imported_call(target: str, replacement: Replacement, captures: Arguments, speller: Speller) -> TargetCall:
    """A call of functions that the rule's file imports, written as in the rule."""
    others = [n for n in replacement.needs if n.package not in _ALWAYS_THERE]
    if target == "torch" and others:
        raise NotInTarget(because(libraries.TORCH_LACKS, operation=others[0].name))
    call = expression_call(replacement, captures, speller)
    needed = [f"the file then needs {p} where it runs" for p in dict.fromkeys(n.package for n in others)]
    return replace(call, unsafe="; ".join(filter(None, (*needed, call.unsafe))))


def _library_call(target: str, replacement: Replacement, captures: Arguments, speller: Speller) -> TargetCall:
    operations = _LIBRARIES[target]
    if replacement.operation not in operations:
        available = ", ".join(operations)
        raise NotInTarget(
            because(libraries.TARGET_LACKS, target=target, operations=available, operation=replacement.operation)
        )
    return operations[replacement.operation](arguments_by_name(replacement, captures, speller), speller)
