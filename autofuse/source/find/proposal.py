"""What autofuse would do at one place of a file: a finding, and the edit that acts on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autofuse.reasons.reason import Reason
from autofuse.results.findings import Finding
from autofuse.source.place.edits import Edit


@dataclass(frozen=True)
class Proposal:
    """A finding and, unless it is only reported, the edit that acts on it.

    `within` are findings that go first: unsafe ones of greater benefit that take this one in, and others that change
    what its edit was made for. Where those are acted on, this one is not, or not yet.
    """

    finding: Finding
    edit: Edit | None
    within: tuple[Finding, ...] = ()
    helpers: tuple[tuple[str, int, int], ...] = ()  # those that the edit leaves without a caller: name and lines


def declined(p: Proposal, reason: Reason) -> Proposal:
    """A proposal without its edit."""
    message = f"{p.finding.message.partition(':')[0]}, not rewritten: {reason}"
    told = replace(p.finding, status="declined", message=message, reason=str(reason), advice=reason.advice())
    return replace(p, finding=replace(told, reason_code=reason.code.name), edit=None)
