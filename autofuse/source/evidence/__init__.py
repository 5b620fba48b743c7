"""Is an edit safe? Evidence from the text for everything that a safe edit rests on.

`safe` is a claim, and a claim is made on evidence. Each file here asks one question about one edit: are the operands
torch tensors, do dtypes agree, do ranks suffice, is the code that was read the code that will run, does anybody read
what is gone. Where a piece of evidence is missing the edit is `unsafe`, and its message names the piece; where there is
counter-evidence the edit is declined.
"""

from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.questions import examined

__all__ = ["Claim", "Missing", "examined"]
