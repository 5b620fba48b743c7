"""Decides whether an edit is safe, by evidence from the source text.

`safe` is a claim. Each file of this package asks one question about an edit:

- Are the operands torch tensors? Do their dtypes agree? Are their ranks high enough?
- Is the code that was read the code that will run?
- Does other code read a value that the edit removes?

If a piece of evidence is missing, the edit is `unsafe` and its message names the piece. If there is counter-evidence,
the edit is declined.
"""

from autofuse.source.evidence.assumed_callees import describe_callees
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.questions import examine_claim

__all__ = ["Claim", "Missing", "describe_callees", "examine_claim"]
