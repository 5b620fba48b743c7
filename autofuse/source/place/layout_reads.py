"""Finds reads of the memory layout of a result: `x.view(b * h, t, d)` can merge dimensions only if they are adjacent.

A matrix product is contiguous, but the result of a fused kernel may have other strides. The search follows a result
through operators that keep its layout, inside one function. layout_callers.py continues in the callers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from autofuse.ir.facts import Facts
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, CONST, GLOBAL, ITEM, OPAQUE, SINK, SYNTAX, TUPLE, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.vocabulary import OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import Reason
from autofuse.source.capture.captured import CapturedFunction

LAYOUT_ATTRIBUTES = frozenset(
    "stride strides is_contiguous data_ptr storage_offset as_strided storage untyped_storage __array_interface__ "
    "dim_order _base _is_view is_set_to".split()
)
_ADDRESSES = frozenset("data_ptr storage untyped_storage _base _is_view is_set_to".split())
_METADATA = frozenset("shape dtype device requires_grad grad size dim ndim".split())
PERMUTING = frozenset("transpose permute mT t T mH H swapaxes".split())
_KEEPS_STRIDES = frozenset("chunk split unbind select squeeze unsqueeze detach identity".split())
_ELEMENTWISE = frozenset("add sub rsub mul div dropout clone to float double half bfloat16 type_as masked_fill".split())
_STORED = (matches.VALUE_STORED, matches.VALUE_READ_BY_FUNCTION)
_CONTIGUOUS_RESULTS = frozenset("contiguous softmax log_softmax cumsum layer_norm rms_norm linear".split())


def layout_reads(captured: CapturedFunction, result: Value) -> Iterator[tuple[Value, bool]]:
    """Yields each value that reads the layout of `result`, and whether its dimensions were permuted before."""
    todo, seen = [(result, False)], set[tuple[Value, bool]]()
    while todo:
        v, is_permuted = todo.pop()
        for user in captured.graph.users[v]:
            if (user, is_permuted) in seen:
                continue
            seen.add((user, is_permuted))
            if _reads_layout(captured, user, v):
                yield user, is_permuted
            elif user.op in PERMUTING or user.op == ATTRIBUTE and user.data in PERMUTING:
                todo.append((user, True))
            elif _keeps_layout(user, v) and not (is_permuted and _is_copied_by_layout(captured, user)):
                todo.append((user, is_permuted))


def _reads_layout(captured: CapturedFunction, user: Value, v: Value) -> bool:
    if _is_copied_by_layout(captured, user):
        return _can_tell_copy(captured, user)
    if user.op == "view":
        return ".view" in captured.spellings.get(user, ()) and not _splits(captured, user, v)
    if user.op == ATTRIBUTE:
        return user.data in LAYOUT_ATTRIBUTES
    if user.op == CALL and isinstance(user.data, tuple) and str(user.data[0]).startswith("torch."):
        return str(user.data[0]).rpartition(".")[2] in LAYOUT_ATTRIBUTES | {"view", "view_as"}
    if user.op == CALL and any(i.op == CONST and i.data in LAYOUT_ATTRIBUTES for i in user.inputs):
        return True  # such as getattr(x, "stride")
    return user.op == "view_as" and ".view_as" in captured.spellings.get(user, ())


def _is_copied_by_layout(captured: CapturedFunction, user: Value) -> bool:
    """Whether `user` is a view or a copy, depending on the layout: `x.contiguous()`, `x.reshape(-1)`."""
    reshaped = user.op == "view" and ".view" not in captured.spellings.get(user, ())
    return reshaped or user.op in ("contiguous", "flatten")


def _can_tell_copy(captured: CapturedFunction, copy: Value) -> bool:
    """Whether the code can notice whether `copy` is a copy, or writes to it."""
    if any(w.target is copy for w in captured.graph.writes):
        return True
    for user in captured.graph.users[copy]:
        is_compared = user.op == SYNTAX and re.search(r"\bIs(Not)?\b", str(user.data))
        name = str(user.data[0]) if user.op == CALL and isinstance(user.data, tuple) else ""
        if is_compared or name == "id" or user.op == ATTRIBUTE and user.data in _ADDRESSES:
            return True
    return False


def _splits(captured: CapturedFunction, view: Value, v: Value) -> bool:
    """Whether a view has more dimensions than its input. It then splits one, which works with any layout."""
    facts = Facts(captured.known)
    before, after = facts.rank(v), facts.rank(view)
    return before is not None and after is not None and after > before


def _keeps_layout(user: Value, v: Value) -> bool:
    if user.op in (CHOICE, OPAQUE, TUPLE, ITEM):
        return True
    if user.op == ATTRIBUTE:
        return user.data not in _METADATA  # may be a method, such as `x.narrow`; its call is a user in turn
    if user.op == CALL and isinstance(user.data, tuple):
        return str(user.data[0]).startswith((".", "torch.")) and not str(user.data[0]).startswith("torch.nn.")
    if user.op not in OPS or user.op in _CONTIGUOUS_RESULTS:
        return False
    # Elementwise operators give their result the strides of the input.
    if user.op in _KEEPS_STRIDES or user.op in _ELEMENTWISE or OPS[user.op].effect == "view" and user.inputs[0] is v:
        return True
    return OPS[user.op].keeps_sizes and user.inputs[0] is v


def is_returned_as_is(captured: CapturedFunction, result: Value) -> bool:
    """Whether the function returns `result` with the layout that it has."""
    todo, seen = [result], {result}
    while todo:
        for user in captured.graph.users[todo.pop()]:
            if user.op == SINK and isinstance(user.data, Reason) and user.data.code is matches.VALUE_RETURNED:
                return True
            continues = user.op in PERMUTING or _keeps_layout(user, user.inputs[0])
            if user not in seen and continues and user.op != CALL:
                seen.add(user)
                todo.append(user)
    return False


def may_escape(captured: CapturedFunction, result: Value) -> bool:
    """Whether `result`, with its layout, is stored in an attribute or a container, or passed to an unknown function."""
    todo, seen = [result], {result}
    while todo:
        for user in captured.graph.users[todo.pop()]:
            is_stored = user.op == SINK and isinstance(user.data, Reason) and user.data.code in _STORED
            name = str(user.data[0]) if user.op == CALL and isinstance(user.data, tuple) else "torch."
            if is_stored or user.op == SYNTAX or not name.startswith("torch.") and name not in HARMLESS:
                return True
            if user not in seen and (user.op in PERMUTING or _keeps_layout(user, user.inputs[0])):
                seen.add(user)
                todo.append(user)
    return False


def receiving_functions(captured: CapturedFunction, result: Value) -> Iterator[str]:
    """Yields the functions of the file that get `result`, with its layout, as an argument."""
    todo, seen = [result], {result}
    while todo:
        for user in captured.graph.users[todo.pop()]:
            if user.op == CALL and user.inputs[0].op in (GLOBAL, ATTRIBUTE):
                yield str(user.inputs[0].data)
            if user not in seen and (user.op in PERMUTING or _keeps_layout(user, user.inputs[0])):
                seen.add(user)
                todo.append(user)
