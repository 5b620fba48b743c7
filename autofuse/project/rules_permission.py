"""Decides which rules of users may be executed. A rule is Python code, so loading it executes code.

- Rules of the project in the working folder are executed.
- Rules of another project need the permission of the user.
- Rules of a project inside another project are executed only if autofuse is started in the inner project.

This module itself executes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from autofuse.loading.registry import announced_rules, load_rules, rule_files
from autofuse.match.pattern import LoadedRule
from autofuse.project.config import FILE, ConfigError, Configuration, FileSettings, display_path, read_table
from autofuse.project.user_settings import AllowedProjects, read_user_permission
from autofuse.results.visible_text import visible

Report = Callable[[str], None]


@dataclass
class RulesPermission:
    """Decides for each configuration of a run whether its rules may be executed.

    Attributes:
        say: Receives a message about rules that are executed.
        warn: Receives a message about rules that are not executed, with the reason.
        allow: Whether --allow-rules was given.
    """

    say: Report
    warn: Report
    allow: bool = False
    _reported: set[tuple[str, ...]] = field(default_factory=set)
    _warned: set[FileSettings] = field(default_factory=set)

    def rules(self, settings: FileSettings) -> tuple[LoadedRule, ...]:
        """Return every rule that may be executed under `settings`. The executed files are reported first.

        Raises:
            ConfigError: The user's configuration is not valid.
            RuleError: A rule is not valid.
        """
        return self.rules_in(settings.rules if self.allows(settings) else ())

    def rules_in(self, folders: tuple[Path, ...]) -> tuple[LoadedRule, ...]:
        """Return every rule, including those of `folders`, which the user named. Raises RuleError."""
        files = [_short_path(file) for folder in folders for file in rule_files(folder)]
        self._announce([*files, *self._announced_by_packages])
        return load_rules(folders) if folders else load_rules()

    def allows(self, settings: FileSettings) -> bool:
        """Whether the rules of a configuration may be executed. If not, a warning is given once."""
        refusal = self._refusal(settings) if settings.rules else None
        if refusal is not None and settings not in self._warned:
            self._warned.add(settings)
            self.warn(f"autofuse: {display_path(settings.root / FILE)} names rules, which are not executed: {refusal}")
        return refusal is None

    def _refusal(self, settings: FileSettings) -> str | None:
        """Return why the rules of a configuration are not executed, and what to do; None if they may be executed."""
        here, root = Path.cwd(), Path(os.path.realpath(settings.root))
        try:
            started_in = os.path.realpath(Configuration().settings_for(here).root)
        except ConfigError:  # the project of the working folder is unknown, so no project is trusted
            started_in = ""
        if str(root) == started_in:
            if _has_trusted_owner(settings, here) or self._allowed_projects.covers(root):
                return None
            return "it belongs to another user than the working folder. --allow-rules executes them."
        if above := _configuration_above(root):
            return (
                f"it is inside the project of {display_path(above)}. Start autofuse in the folder of the inner project "
                "to execute them."
            )
        if self._allowed_projects.covers(root):
            return None
        return "autofuse was not started in that project. Start it there, or allow it with --allow-rules."

    @cached_property
    def _announced_by_packages(self) -> tuple[str, ...]:
        """The rules that installed packages announce. The installation of a package is the permission."""
        return tuple(map(visible, announced_rules()))

    @cached_property
    def _allowed_projects(self) -> AllowedProjects:
        return AllowedProjects(every=True) if self.allow else read_user_permission()

    def _announce(self, files: Sequence[str]) -> None:
        if files and tuple(files) not in self._reported:
            self._reported.add(tuple(files))
            self.say(f"autofuse: executes rules that are not its own: {', '.join(files)}")


def _configuration_above(folder: Path) -> Path | None:
    """Return the configuration of a project that contains `folder`, or None. An unreadable configuration counts."""
    for above in folder.parents:
        try:
            if read_table(above / FILE) is not None:
                return above / FILE
        except ConfigError:
            return above / FILE
    return None


def _has_trusted_owner(settings: FileSettings, here: Path) -> bool:
    """Whether the configuration and its rules belong to the user, to root, or to the owner of the working folder.

    The check is necessary because everyone may write to a parent folder such as /tmp.
    """
    if not hasattr(os, "geteuid"):
        return True
    owners = {os.geteuid(), 0, os.stat(here).st_uid}
    files = [file for folder in settings.rules for file in rule_files(folder)]
    paths = [settings.root / FILE, *settings.rules, *files]
    return all(os.stat(path).st_uid in owners for path in paths)


def _short_path(file: Path) -> str:
    relative = os.path.relpath(file)
    return visible(str(file) if relative.startswith("..") else relative)
