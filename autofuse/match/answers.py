"""Calls a rule's `where` or `at` and checks its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from autofuse.rule import Fails, Holds, Rule, RuleError, Safety, Unknown, Verdict


def answer_of(rule: type[Rule], function: Callable[..., object], subject: object) -> Verdict | None:
    """Call a rule's `where` or `at`.

    Args:
        rule: the rule.
        function: its `where` or `at`.
        subject: the captures or the call to pass.

    Returns:
        The verdict; None if the function returns None.

    Raises:
        RuleError: the function raises an error, or does not return a verdict. A user may have written it.
    """
    name = f"{rule.__name__}.{getattr(function, '__name__', 'where')}"
    try:
        answer = function(subject)
    except RuleError as error:
        raise RuleError(f"{name} {error}") from error
    except Exception as error:
        raise RuleError(f"{name} raised {type(error).__name__}: {error}. Correct it in the rule's file.") from error
    if isinstance(answer, Holds) and answer.safety not in get_args(Safety):
        raise RuleError(f'{name} returned Holds({answer.safety!r}). Its safety must be "safe" or "unsafe".')
    if answer is None or isinstance(answer, (Holds, Fails, Unknown)):
        return answer
    raise RuleError(f"{name} returned {answer!r}. Return Holds(), Unknown(...), Fails(...) or None.")
