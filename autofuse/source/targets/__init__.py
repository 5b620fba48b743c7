"""How a target spells the semantic operations that rules speak in.

`auto`, the default, calls torch where torch has the operation, and autofuse.ops where it has none, which is `unsafe`:
the file then needs autofuse where it runs. `torch` calls torch alone, `autofuse` calls autofuse.ops always.
`flash-attn`, `apex` and `liger` call those libraries, for who wants the dependency to be seen: what a library does not
take is left as it is, with the reason, and all else is `unsafe`, for a text says nothing of dtypes and devices.
Knows which target has what; a file each knows how. Nothing here knows a syntax tree or makes an edit.
"""

from __future__ import annotations

from dataclasses import replace

from autofuse.reasons import libraries
from autofuse.reasons.reason import because
from autofuse.results.target_names import DEFAULT, TARGETS
from autofuse.rule import Replacement
from autofuse.source.targets import apex, flash_attn, liger
from autofuse.source.targets.autofuse import autofuse_call
from autofuse.source.targets.call import Arguments, NotInTarget, TargetCall, named
from autofuse.source.targets.express import Speller
from autofuse.source.targets.expression import expression_call
from autofuse.source.targets.torch import OPERATIONS, RECENT

__all__ = ["DEFAULT", "TARGETS", "NotInTarget", "TargetCall", "call_of"]

_LIBRARIES = {"flash-attn": flash_attn.OPERATIONS, "apex": apex.OPERATIONS, "liger": liger.OPERATIONS}
_ALWAYS_THERE = ("torch", "math")  # in a file that computes with torch
_NEEDS_AUTOFUSE = "the file then needs autofuse where it runs"


def call_of(target: str, replacement: Replacement, captures: Arguments, s: Speller) -> TargetCall:
    """The call that stands for a rule's `after`. Raises NotInTarget, and Unwritable where an argument is missing."""
    if replacement.expression is not None and target in (DEFAULT, "torch", "autofuse"):
        return _of_imported(target, replacement, captures, s)
    if target == "autofuse":
        return autofuse_call(replacement, captures, s)
    if target in _LIBRARIES:
        return _of_library(target, replacement, captures, s)
    if replacement.operation in OPERATIONS and (target == "torch" or replacement.operation not in RECENT):
        return OPERATIONS[replacement.operation](named(replacement, captures, s), s)
    if target == "torch":
        raise NotInTarget(because(libraries.TORCH_LACKS, operation=replacement.operation))
    call = autofuse_call(replacement, captures, s)
    return replace(call, unsafe="; ".join(filter(None, (_NEEDS_AUTOFUSE, call.unsafe))))


def _of_imported(target: str, replacement: Replacement, captures: Arguments, s: Speller) -> TargetCall:
    """A call of what the rule's file imports: as it stands there."""
    others = [n for n in replacement.needs if n.package not in _ALWAYS_THERE]
    if target == "torch" and others:
        raise NotInTarget(because(libraries.TORCH_LACKS, operation=others[0].name))
    call = expression_call(replacement, captures, s)
    needed = [f"the file then needs {p} where it runs" for p in dict.fromkeys(n.package for n in others)]
    return replace(call, unsafe="; ".join(filter(None, (*needed, call.unsafe))))


def _of_library(target: str, replacement: Replacement, captures: Arguments, s: Speller) -> TargetCall:
    operations = _LIBRARIES[target]
    if replacement.operation not in operations:
        others = ", ".join(operations)
        raise NotInTarget(
            because(libraries.TARGET_LACKS, target=target, operations=others, operation=replacement.operation)
        )
    return operations[replacement.operation](named(replacement, captures, s), s)
