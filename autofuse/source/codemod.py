"""The same rewrite as a libcst codemod, so that a codemod run can include it.

    python -m libcst.tool codemod -x --no-format autofuse.source.codemod.AutofuseCommand FILE...

Knows libcst's command interface; the work is that of check.py and write.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from autofuse.registry import load_rules
from autofuse.source.check import proposals
from autofuse.source.targets import TARGETS
from autofuse.source.write import CannotWrite, applied

_ROUNDS = 4  # one rewrite may make room for another


class AutofuseCommand(CodemodCommand):
    """Swaps hand-written layers for fused ones."""

    DESCRIPTION: str = "Swap attention, norms and activations that are written out for fused operations."

    def __init__(self, context: CodemodContext, unsafe: bool = False, target: str = "torch") -> None:
        super().__init__(context)
        self.statuses: Sequence[str] = ("safe", "unsafe") if unsafe else ("safe",)
        self.target = target

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.add_argument("--unsafe", action="store_true", help="include edits that assume something")
        arg_parser.add_argument("--target", choices=TARGETS, default="torch", help="what the new code calls")

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """`tree` with every wanted edit made. Raises SkipFile where the file cannot be edited."""
        source = tree.bytes
        try:
            for _ in range(_ROUNDS):
                found = proposals(source, self.context.filename or "<codemod>", rules=load_rules(), target=self.target)
                wanted = [p for p in found if p.edit is not None and p.finding.status in self.statuses]
                if not wanted:
                    break
                source = applied(source, wanted)
        except CannotWrite as reason:
            raise SkipFile(str(reason)) from reason
        return tree if source == tree.bytes else cst.parse_module(source, config=tree.config_for_parsing)
