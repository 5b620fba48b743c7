"""Describes internal errors of autofuse: one line for the report, and the traceback for the log at level DEBUG.

The user's program continues with the original code.
"""

from __future__ import annotations

import logging

from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.rule import RuleError
from autofuse.verify.out_of_memory import is_out_of_memory

_LOG = logging.getLogger("autofuse")


def reason_of_failure(error: Exception, doing: str, then: str = "the original runs") -> Reason:
    """The reason for the report. Also writes the traceback to the log.

    Args:
        error: The error.
        doing: What autofuse was doing, such as "checking it".
        then: What happens as a result.
    """
    _LOG.debug("autofuse failed while %s.", doing, exc_info=error)
    if is_out_of_memory(error):
        return because(outcomes.OUT_OF_MEMORY, doing=doing, error=one_line(error), then=then)
    if isinstance(error, RuleError):
        return because(outcomes.RULE_FAILED, error=one_line(error))
    return because(outcomes.INTERNAL_ERROR, doing=doing, error=one_line(error), then=then)


def one_line(error: Exception) -> str:
    """The class of an error and the first line of its message."""
    try:
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    except Exception:  # its __str__ raised
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
