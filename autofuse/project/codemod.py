"""The same rewrite as a libcst codemod, so that a codemod run can include it.

    python -m libcst.tool codemod -x --no-format autofuse.source.codemod.AutofuseCommand FILE...

Settings and `# autofuse: ignore` hold as they do for `autofuse rewrite`, and whose rules are executed. Knows libcst's
command interface; the work is that of run.py.
"""

from __future__ import annotations

import argparse
import sys

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from autofuse.loading.selection import UnknownCode
from autofuse.project.config import ConfigError, Configuration
from autofuse.project.file_discovery import Project, Trouble
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import RewriteRun
from autofuse.rule import RuleError
from autofuse.source.targets import TARGETS


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


class AutofuseCommand(CodemodCommand):
    """Swaps hand-written layers for fused ones."""

    DESCRIPTION: str = "Swap attention, norms and activations that are written out for fused operations."

    def __init__(self, context: CodemodContext, unsafe: bool = False, target: str | None = None) -> None:
        super().__init__(context)
        self.unsafe = unsafe
        self.run = RewriteRun(target=target, permission=RulesPermission(_say, _say))
        self.project = Project(Configuration())

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.add_argument("--unsafe", action="store_true", help="include edits that assume something")
        arg_parser.add_argument("--target", choices=TARGETS, help="what the new code calls")

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """`tree` with every wanted edit made. Raises SkipFile where the file cannot be edited."""
        source = tree.bytes
        try:
            file = self.project.text(self.context.filename)
            self.run.rules(file.settings)
        except (ConfigError, UnknownCode, RuleError) as error:
            raise SkipFile(str(error)) from error
        checked = self.run.check_text(source, file)
        result = checked if isinstance(checked, Trouble) else self.run.rewrite(checked, file, self.unsafe)
        if isinstance(result, Trouble):
            raise SkipFile(result.message)
        troubles = () if isinstance(checked, Trouble) else checked.troubles
        for told in (*troubles, *result.refused):
            self.warn(told.message)
        return cst.parse_module(result.after, config=tree.config_for_parsing) if result.edits else tree
