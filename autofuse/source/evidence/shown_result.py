"""Does anybody see which operation made the result? Printing a tensor shows it: `grad_fn=<MulBackward0>`."""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.ir.graph import ATTRIBUTE, CALL, GLOBAL, OPAQUE, PARAMETER, SYNTAX, Value, ancestors
from autofuse.rule import Fails
from autofuse.source.capture.capture_state import qualified
from autofuse.source.evidence.claim import Claim, Missing

_PRINT = frozenset({"print", "str", "repr", "format", ".format", "pprint.pprint"})


def result_is_not_shown(claim: Claim) -> Iterator[Missing | Fails]:
    """What is assumed where a result is printed whole, or asked for what made it."""
    for result in claim.site.results:
        if _may_have_gradient(claim, result.value) and any(
            _shows(user) for user in claim.captured.graph.users[result.value]
        ):
            yield Missing("assumes that nobody minds which operation is printed with the result, as its grad_fn")


def _may_have_gradient(claim: Claim, v: Value) -> bool:
    """Whether a value may need a gradient: not what is made of constants, of which none was asked for."""
    for a in ancestors(v):
        if a.op in (PARAMETER, GLOBAL, OPAQUE) or a.op == ATTRIBUTE and qualified(a) is None:
            return True
        if any("requires_grad" in name for name in claim.captured.spelled.get(a, ())):
            return True
        if a.op == CALL and not (isinstance(a.data, tuple) and str(a.data[0]).startswith("torch.") and not a.data[1]):
            return True
    return False


def _shows(user: Value) -> bool:
    if user.op == ATTRIBUTE:
        return user.data == "grad_fn"
    if user.op == CALL:
        return isinstance(user.data, tuple) and user.data[0] in _PRINT
    return user.op == SYNTAX and user.data in ("JoinedStr", "FormattedValue")
