"""The rules that hold in the working folder: its configuration may name folders with rules of its own."""

from __future__ import annotations

from pathlib import Path

from autofuse.loading.registry import load_rules
from autofuse.match.pattern import LoadedRule
from autofuse.project.config import Configuration


def rules_here() -> tuple[LoadedRule, ...]:
    """Every rule of autofuse, of installed packages, and of the folders that [tool.autofuse] here names.

    Raises ConfigError and RuleError, each a sentence with what to change.
    """
    folders = Configuration().of(Path.cwd()).rules
    return load_rules(folders) if folders else load_rules()
