"""The rules that hold in the working folder: its configuration may name folders with rules of its own."""

from __future__ import annotations

import logging
from pathlib import Path

from autofuse.match.pattern import LoadedRule
from autofuse.project.config import Configuration
from autofuse.project.rules_permission import RulesPermission

_LOG = logging.getLogger("autofuse")
_LOGGED = RulesPermission(_LOG.info, _LOG.warning)  # each file is told once in a process


def rules_here(permission: RulesPermission = _LOGGED) -> tuple[LoadedRule, ...]:
    """Every rule of autofuse, of installed packages, and of the folders that [tool.autofuse] here names.

    Unless `permission` tells it, the log does which files are executed, as a message of level INFO. Raises ConfigError
    and RuleError, each a sentence with what to change.
    """
    return permission.rules(Configuration().of(Path.cwd()))
