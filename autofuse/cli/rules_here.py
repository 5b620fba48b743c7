"""The rules that hold in the working folder, and what is wrong with its configuration, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autofuse.cli.output import Output
from autofuse.loading.registry import load_rules
from autofuse.loading.selection import UnknownCode
from autofuse.match.matcher import LoadedRule
from autofuse.project.config import ConfigError, Configuration
from autofuse.rule import RuleError


def rules_here() -> tuple[LoadedRule, ...]:
    """The rules that hold in the working folder: its configuration may name some of its own."""
    return load_rules(Configuration().of(Path.cwd()).rules)


@contextmanager
def sentences(out: Output) -> Iterator[list[str]]:
    """Tells what is wrong with a configuration, a code or a rule in a sentence; the list is empty if all was well."""
    told: list[str] = []
    try:
        yield told
    except (ConfigError, UnknownCode, RuleError) as error:
        told.append(str(error))
        out.say(f"autofuse: {error}")
