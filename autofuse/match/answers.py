"""What a rule's `where` or `at` answers: a verdict, or a sentence on what is wrong with the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from autofuse.rule import Fails, Holds, Rule, RuleError, Safety, Unknown, Verdict


def answer_of(rule: type[Rule], ask: Callable[..., object], asked: object) -> Verdict | None:
    """What `ask`, the rule's `where` or `at`, says of what it is `asked` about.

    Raises RuleError where it raises anything, or answers what is no verdict: it is the user's code.
    """
    name = f"{rule.__name__}.{getattr(ask, '__name__', 'where')}"
    try:
        answer = ask(asked)
    except RuleError as error:
        raise RuleError(f"{name} {error}") from error
    except Exception as error:
        raise RuleError(f"{name} raised {type(error).__name__}: {error}. Correct it in the rule's file.") from error
    if isinstance(answer, Holds) and answer.safety not in get_args(Safety):
        raise RuleError(f'{name} answered Holds({answer.safety!r}). An edit is "safe" or "unsafe".')
    if answer is None or isinstance(answer, (Holds, Fails, Unknown)):
        return answer
    raise RuleError(f"{name} answered {answer!r}. Return Holds(), Unknown(...), Fails(...) or None.")
