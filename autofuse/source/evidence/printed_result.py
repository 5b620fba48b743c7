"""Does the program print the result? A printed tensor names its operation: `grad_fn=<MulBackward0>`."""

from __future__ import annotations

from collections.abc import Iterator

from autofuse.ir.graph import ATTRIBUTE, CALL, GLOBAL, OPAQUE, PARAMETER, SYNTAX, Value, ancestors
from autofuse.rule import Fails
from autofuse.source.capture.capture_state import qualified_name
from autofuse.source.evidence.call_arguments import CallArguments
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.printed_by_callers import PrintIndex, mentions_gradients
from autofuse.source.place.layout_reads import is_returned_as_is

_MISSING = Missing("assumes that the operation in the result's grad_fn, which is printed, does not matter")
_PRINTING_FUNCTIONS = frozenset({"print", "str", "repr", "format", ".format", "pprint.pprint"})


def check_printed_result(claim: Claim) -> Iterator[Missing | Fails]:
    """Yield an assumption if a result is printed, or if its `grad_fn` is read."""
    for result in claim.site.results:
        if _may_have_gradient(claim, result.value) and any(
            _prints(user) for user in claim.captured.graph.users[result.value]
        ):
            yield _MISSING
            return
        if is_returned_as_is(claim.captured, result.value) and _is_printed_by_caller(claim):
            yield _MISSING
            return


def _is_printed_by_caller(claim: Claim) -> bool:
    """Whether a caller in the file prints the result, and the arguments may need gradients."""
    defined = claim.defined
    printed = defined.scope.index(PrintIndex)
    if not printed.has_reads() or not printed.callers_read(claim.captured.function, defined.owner):
        return False
    calls = defined.scope.index(CallArguments)
    arguments = [calls.passed_values(call, name) for call in calls.calls_of(defined) for name in call.arguments]
    # Without a gradient there is no grad_fn: the file creates every argument, and mentions no gradients.
    return defined.scope.index(mentions_gradients) or not arguments or not all(arguments)


def _may_have_gradient(claim: Claim, v: Value) -> bool:
    """Whether a value may need a gradient; a value that is computed from constants alone does not."""
    for a in ancestors(v):
        if a.op in (PARAMETER, GLOBAL, OPAQUE) or a.op == ATTRIBUTE and qualified_name(a) is None:
            return True
        if any("requires_grad" in name for name in claim.captured.spellings.get(a, ())):
            return True
        if a.op == CALL and not (isinstance(a.data, tuple) and str(a.data[0]).startswith("torch.") and not a.data[1]):
            return True
    return False


def _prints(user: Value) -> bool:
    if user.op == ATTRIBUTE:
        return user.data == "grad_fn"
    if user.op == CALL:
        return isinstance(user.data, tuple) and user.data[0] in _PRINTING_FUNCTIONS
    return user.op == SYNTAX and user.data in ("JoinedStr", "FormattedValue")
