"""What a trainer's log is told at the end of a run: what is fused, and what was lost on the way. Knows reports."""

from __future__ import annotations

import logging

from autofuse.results.sites import Report

_LOG = logging.getLogger("autofuse")


def tell(model: str, report: Report) -> None:
    """One line for the model; one, as a warning, for each site that was taken back and each guard that failed."""
    _LOG.info("%s: %s.", model, report.summary)
    for site in report.with_status("rolled-back"):
        _LOG.warning("%s: %s in %s was taken back: %s", model, site.rule, site.module or "the model", site.reason)
    for found in report.fallbacks:
        if found.ran == "original":
            _LOG.warning(
                "%s: %d calls of %s ran the original: the guard `%s` failed.",
                model, found.calls, found.module or "the model", found.guard,
            )  # fmt: skip
