"""Loads the rules of the working folder. Its configuration may name folders with further rules."""

from __future__ import annotations

import logging
from pathlib import Path

from autofuse.match.pattern import LoadedRule
from autofuse.project.config import Configuration
from autofuse.project.rules_permission import RulesPermission

_LOG = logging.getLogger("autofuse")
# One object for the process, so that the log names each executed file once.
_LOGGED = RulesPermission(_LOG.info, _LOG.warning)


def load_project_rules(permission: RulesPermission = _LOGGED) -> tuple[LoadedRule, ...]:
    """Return the rules of autofuse, of installed packages, and of the folders that [tool.autofuse] names here.

    Args:
        permission: Decides which files may be executed and reports them. The default reports to the log: executed files
            with level INFO, files that are not executed with level WARNING.

    Raises:
        ConfigError: The configuration is not valid. The message says what to change.
        RuleError: A rule is not valid. The message says what to change.
    """
    return permission.rules(Configuration().settings_for(Path.cwd()))
