"""The text that an editor shows for a finding under the pointer, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.cli.rules_text import side_of, title, why
from autofuse.match.pattern import LoadedRule
from autofuse.results.findings import Finding


def hover_text(finding: Finding, rules: Sequence[LoadedRule]) -> str:
    """Returns a finding in full, with its mask and the explanation of its rule."""
    parts = [f"**autofuse {finding.code}** ({finding.status}): {finding.message}"]
    if finding.reason and finding.reason not in finding.message:
        parts.append(finding.reason)
    if finding.advice:
        parts.append(f"Advice: {finding.advice}")
    if finding.mask:
        parts.append(f"Mask: {finding.mask}")
    rule = next((r.rule for r in rules if r.rule.__name__ == finding.rule and r.rule.code == finding.code), None)
    if rule is not None:
        parts += [f"*{title(rule)}*", why(rule)]
        parts += [f"```python\n{side_of(rule, side).rstrip()}\n```" for side in ("before", "after")]
    parts.append(f"Switch it off with `# autofuse: ignore[{finding.code}]`.")
    return "\n\n".join(filter(None, parts))
