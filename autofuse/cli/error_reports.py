"""Reports errors in a configuration, a rule code or a rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autofuse.cli.output import Output
from autofuse.loading.unknown_code import UnknownCode
from autofuse.project.config import ConfigError
from autofuse.rule import RuleError


@contextmanager
def report_errors(out: Output) -> Iterator[list[str]]:
    """Catches an error in a configuration, a rule code or a rule, and reports it in a sentence.

    Yields:
        A list, which holds the sentence after an error.
    """
    errors: list[str] = []
    try:
        yield errors
    except (ConfigError, UnknownCode, RuleError) as error:
        errors.append(str(error))
        out.say(f"autofuse: {error}")
