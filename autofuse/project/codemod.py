"""The rewrite as a LibCST codemod, so that it can be part of a codemod run.

    python -m libcst.tool codemod -x --no-format autofuse.source.codemod.AutofuseCommand FILE...

The configuration, `# autofuse: ignore` comments and the permission to execute rules have the same effect as in
`autofuse rewrite`. This module implements the command interface of LibCST; run.py does the work.
"""

from __future__ import annotations

import argparse
import sys

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from autofuse.loading.selection import UnknownCode
from autofuse.project.config import ConfigError, Configuration
from autofuse.project.file_discovery import Problem, Project
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import RewriteRun
from autofuse.rule import RuleError
from autofuse.source.targets import TARGETS


def _print_to_stderr(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


class AutofuseCommand(CodemodCommand):
    """Replaces hand-written layers by fused operations."""

    DESCRIPTION: str = "Replace hand-written attention, norms and activations by fused operations."

    def __init__(self, context: CodemodContext, unsafe: bool = False, target: str | None = None) -> None:
        super().__init__(context)
        self.unsafe = unsafe
        self.run = RewriteRun(target=target, permission=RulesPermission(_print_to_stderr, _print_to_stderr))
        self.project = Project(Configuration())

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.add_argument("--unsafe", action="store_true", help="include edits that assume something")
        arg_parser.add_argument("--target", choices=TARGETS, help="what the new code calls")

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """Return `tree` with all edits. Raises SkipFile if the file cannot be edited."""
        source = tree.bytes
        try:
            file = self.project.text(self.context.filename)
            self.run.rules(file.settings)
        except (ConfigError, UnknownCode, RuleError) as error:
            raise SkipFile(str(error)) from error
        checked = self.run.check_text(source, file)
        result = checked if isinstance(checked, Problem) else self.run.rewrite(checked, file, self.unsafe)
        if isinstance(result, Problem):
            raise SkipFile(result.message)
        problems = () if isinstance(checked, Problem) else checked.problems
        for problem in (*problems, *result.refused):
            self.warn(problem.message)
        return cst.parse_module(result.after, config=tree.config_for_parsing) if result.edits else tree
