"""A proposal for one place in a file: a finding, and the edit that acts on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autofuse.reasons.reason import Reason
from autofuse.results.findings import Finding
from autofuse.source.place.edits import Edit


@dataclass(frozen=True)
class Proposal:
    """A finding and, unless it is only reported, the edit that acts on it.

    Attributes:
        finding: the finding.
        edit: the edit, or None.
        waits_for: findings with edits that go first. They change the code of this edit, so this edit is not made in the
            same pass. They are unsafe edits of greater benefit that cover this one, and edits of the same code.
        helpers: the functions that the edit leaves without a caller: name, first line and last line of each.
    """

    finding: Finding
    edit: Edit | None
    waits_for: tuple[Finding, ...] = ()
    helpers: tuple[tuple[str, int, int], ...] = ()


def decline(proposal: Proposal, reason: Reason) -> Proposal:
    """A copy of the proposal that is declined for `reason` and has no edit."""
    message = f"{proposal.finding.message.partition(':')[0]}, not rewritten: {reason}"
    finding = replace(proposal.finding, status="declined", message=message, reason=str(reason), advice=reason.advice())
    return replace(proposal, finding=replace(finding, reason_code=reason.code.name), edit=None)
