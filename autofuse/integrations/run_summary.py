"""Logs the result at the end of a training run: the fused sites, rollbacks, and guards that failed."""

from __future__ import annotations

import logging

from autofuse.results.sites import Report

_LOG = logging.getLogger("autofuse")


def log_report(model: str, report: Report) -> None:
    """Logs one line for the model, and a warning for each rollback and each guard that failed."""
    _LOG.info("%s: %s.", model, report.summary)
    for site in report.with_status("rolled-back"):
        _LOG.warning("%s: %s in %s was rolled back: %s", model, site.rule, site.module or "the model", site.reason)
    for fallback in report.fallbacks:
        if fallback.ran == "original":
            _LOG.warning(
                "%s: %d calls of %s ran the original: the guard `%s` failed.",
                model, fallback.calls, fallback.module or "the model", fallback.guard,
            )  # fmt: skip
