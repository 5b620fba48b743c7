"""Does anybody see which operation made the result? Printing a tensor shows it: `grad_fn=<MulBackward0>`."""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.ir.graph import ATTRIBUTE, CALL, GLOBAL, OPAQUE, PARAMETER, SYNTAX, Value, ancestors
from autofuse.rule import Fails
from autofuse.source.capture.capture_state import qualified
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.given_arguments import GivenArguments
from autofuse.source.evidence.shown_by_callers import ShownIndex, gradients_are_made
from autofuse.source.place.layout_reads import returned_as_is

_MISSING = Missing("assumes that nobody minds which operation is printed with the result, as its grad_fn")
_PRINT = frozenset({"print", "str", "repr", "format", ".format", "pprint.pprint"})


def result_is_not_shown(claim: Claim) -> Iterator[Missing | Fails]:
    """What is assumed where a result is printed whole, or asked for what made it."""
    for result in claim.site.results:
        if _may_have_gradient(claim, result.value) and any(
            _shows(user) for user in claim.captured.graph.users[result.value]
        ):
            yield _MISSING
            return
        if returned_as_is(claim.captured, result.value) and _caller_shows(claim):
            yield _MISSING
            return


def _caller_shows(claim: Claim) -> bool:
    """Whether a caller in the file shows the result whole, unless all that is given is made there without gradients."""
    d = claim.defined
    shown = d.scope.index(ShownIndex)
    if not shown.asked_anywhere() or not shown.callers_ask(claim.captured.function, d.owner):
        return False
    given = d.scope.index(GivenArguments)
    made = [given.made(call, name) for call in given.calls_of(d) for name in call.arguments]
    return d.scope.index(gradients_are_made) or not made or not all(made)


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
