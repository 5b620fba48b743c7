"""What is wrong with a configuration, a code or a rule, told in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autofuse.cli.output import Output
from autofuse.loading.unknown_code import UnknownCode
from autofuse.project.config import ConfigError
from autofuse.rule import RuleError


@contextmanager
def sentences(out: Output) -> Iterator[list[str]]:
    """Tells what is wrong with a configuration, a code or a rule in a sentence; the list is empty if all was well."""
    told: list[str] = []
    try:
        yield told
    except (ConfigError, UnknownCode, RuleError) as error:
        told.append(str(error))
        out.say(f"autofuse: {error}")
