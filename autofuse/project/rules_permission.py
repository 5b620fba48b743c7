"""Rules are code: which of the folders that configurations name may be executed, and what is said of it.

The rules of the project that the command was started in are; those of another project need the user's permission; a
configuration inside of another project names none at all. Executes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from autofuse.loading.registry import announced_rules, load_rules, rule_files
from autofuse.match.pattern import LoadedRule
from autofuse.project.config import FILE, ConfigError, Configuration, FileSettings, named, table_of
from autofuse.project.user_settings import Allowed, allowed_by_user
from autofuse.results.visible_text import visible

Say = Callable[[str], None]


@dataclass
class RulesPermission:
    """Asked once for each configuration of a run. `say` is told what is executed, `warn` what is not, and why."""

    say: Say
    warn: Say
    allow: bool = False  # --allow-rules
    _told: set[tuple[str, ...]] = field(default_factory=set)
    _warned: set[FileSettings] = field(default_factory=set)

    def rules(self, settings: FileSettings) -> tuple[LoadedRule, ...]:
        """Every rule that may hold under some settings; what of them is executed is told before.

        Raises ConfigError where the user's configuration cannot be used, and RuleError.
        """
        return self.rules_in(settings.rules if self.allows(settings) else ())

    def rules_in(self, folders: tuple[Path, ...]) -> tuple[LoadedRule, ...]:
        """Every rule, with those of `folders`, which the user named. Raises RuleError."""
        files = [_short(file) for folder in folders for file in rule_files(folder)]
        self._announce([*files, *self._of_packages])
        return load_rules(folders) if folders else load_rules()

    def allows(self, settings: FileSettings) -> bool:
        """Whether the rules that a configuration names, if any, may be executed; if not, that is told once."""
        why_not = self._refusal(settings) if settings.rules else None
        if why_not is not None and settings not in self._warned:
            self._warned.add(settings)
            self.warn(f"autofuse: {named(settings.root / FILE)} names rules, which are not executed: {why_not}")
        return why_not is None

    def _refusal(self, settings: FileSettings) -> str | None:
        """Why the rules of a configuration are not executed, and what to do; None where they may be."""
        here, root = Path.cwd(), Path(os.path.realpath(settings.root))
        try:
            started_in = os.path.realpath(Configuration().of(here).root)
        except ConfigError:  # then nothing is known to be ours
            started_in = ""
        if str(root) == started_in:
            if _is_of_owner(settings, here) or self._allowed.covers(root):
                return None
            return "it belongs to another user than the working folder. --allow-rules executes them."
        if above := _configured_above(root):
            return f"it lies within the project of {named(above)}. Start autofuse in its own folder to have them."
        if self._allowed.covers(root):
            return None
        return "autofuse was not started in that project. Start it there, or allow it with --allow-rules."

    @cached_property
    def _of_packages(self) -> tuple[str, ...]:
        """What installed packages announce: it is their installation that allows it."""
        return tuple(map(visible, announced_rules()))

    @cached_property
    def _allowed(self) -> Allowed:
        return Allowed(every=True) if self.allow else allowed_by_user()

    def _announce(self, files: Sequence[str]) -> None:
        if files and tuple(files) not in self._told:
            self._told.add(tuple(files))
            self.say(f"autofuse: executes rules that are not its own: {', '.join(files)}")


def _configured_above(folder: Path) -> Path | None:
    """The configuration that a project lies within; one that cannot be read counts, too."""
    for above in folder.parents:
        try:
            if table_of(above / FILE) is not None:
                return above / FILE
        except ConfigError:
            return above / FILE
    return None


def _is_of_owner(settings: FileSettings, here: Path) -> bool:
    """Whether what names the rules, and what holds them, is the user's, root's, or of the owner of the working folder.

    A folder above may be anybody's to write to, as /tmp is.
    """
    if not hasattr(os, "geteuid"):
        return True
    owners = {os.geteuid(), 0, os.stat(here).st_uid}
    named_rules = [file for folder in settings.rules for file in rule_files(folder)]
    places = [settings.root / FILE, *settings.rules, *named_rules]
    return all(os.stat(place).st_uid in owners for place in places)


def _short(file: Path) -> str:
    relative = os.path.relpath(file)
    return visible(str(file) if relative.startswith("..") else relative)
