"""What is said where autofuse itself fails: one line of the report; the whole story goes to the log, at DEBUG.

The user's program goes on with the original. Knows errors and words; must not know who catches them.
"""

from __future__ import annotations

import logging

from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.rule import RuleError
from autofuse.verify.out_of_memory import is_out_of_memory

_LOG = logging.getLogger("autofuse")


def reason_of_failure(error: Exception, doing: str, then: str = "the original runs") -> Reason:
    """The reason for a report: `error` was raised while `doing`, such as "checking it", and what happened `then`.

    The log hears of it, too.
    """
    _LOG.debug("autofuse failed while %s.", doing, exc_info=error)
    if is_out_of_memory(error):
        return because(outcomes.OUT_OF_MEMORY, doing=doing, error=in_a_line(error), then=then)
    if isinstance(error, RuleError):
        return because(outcomes.RULE_FAILED, error=in_a_line(error))
    return because(outcomes.INTERNAL_ERROR, doing=doing, error=in_a_line(error), then=then)


def in_a_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    try:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    except Exception:  # an error whose text cannot be had
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
