"""Does code rely on how a result lies in memory? `x.view(b * h, t, d)` joins dimensions only where they adjoin.

A product of matrices is contiguous; what a fused kernel returns may lie otherwise. Follows a result through what keeps
its layout, as far as the function goes (layout_callers.py follows it out of there). Edits nothing.
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

ASKED = frozenset(
    "stride strides is_contiguous data_ptr storage_offset as_strided storage untyped_storage __array_interface__ "
    "dim_order _base _is_view is_set_to".split()
)
_ADDRESSES = frozenset("data_ptr storage untyped_storage _base _is_view is_set_to".split())
_METADATA = frozenset("shape dtype device requires_grad grad size dim ndim".split())
TURNED = frozenset("transpose permute mT t T mH H swapaxes".split())
_SPLIT = frozenset("chunk split unbind select squeeze unsqueeze detach identity".split())
_ELEMENTWISE = frozenset("add sub rsub mul div dropout clone to float double half bfloat16 type_as masked_fill".split())
_TAKEN = (matches.VALUE_STORED, matches.VALUE_READ_BY_FUNCTION)
_FRESH = frozenset("contiguous softmax log_softmax cumsum layer_norm rms_norm linear".split())


def layout_reads(captured: CapturedFunction, result: Value) -> Iterator[tuple[Value, bool]]:
    """What asks how `result` lies in memory, and whether the dimensions were turned before that."""
    todo, seen = [(result, False)], set[tuple[Value, bool]]()
    while todo:
        v, turned = todo.pop()
        for user in captured.graph.users[v]:
            if (user, turned) in seen:
                continue
            seen.add((user, turned))
            if _asks(captured, user, v):
                yield user, turned
            elif user.op in TURNED or user.op == ATTRIBUTE and user.data in TURNED:
                todo.append((user, True))
            elif _keeps_layout(user, v) and not (turned and _is_copied_by_layout(captured, user)):
                todo.append((user, turned))


def _asks(captured: CapturedFunction, user: Value, v: Value) -> bool:
    if _is_copied_by_layout(captured, user):
        return _is_told_from(captured, user)
    if user.op == "view":
        return ".view" in captured.spelled.get(user, ()) and not _splits(captured, user, v)
    if user.op == ATTRIBUTE:
        return user.data in ASKED
    if user.op == CALL and isinstance(user.data, tuple) and str(user.data[0]).startswith("torch."):
        return str(user.data[0]).rpartition(".")[2] in ASKED | {"view", "view_as"}
    if user.op == CALL and any(i.op == CONST and i.data in ASKED for i in user.inputs):
        return True  # getattr(x, "stride")
    return user.op == "view_as" and ".view_as" in captured.spelled.get(user, ())


def _is_copied_by_layout(captured: CapturedFunction, user: Value) -> bool:
    """Whether `user` is the tensor itself, or a copy, by how that lies in memory: x.contiguous(), x.reshape(-1)."""
    reshaped = user.op == "view" and ".view" not in captured.spelled.get(user, ())
    return reshaped or user.op in ("contiguous", "flatten")


def _is_told_from(captured: CapturedFunction, copy: Value) -> bool:
    """Whether it is asked if `copy` is a copy, or written to."""
    if any(w.target is copy for w in captured.graph.writes):
        return True
    for user in captured.graph.users[copy]:
        compared = user.op == SYNTAX and re.search(r"\bIs(Not)?\b", str(user.data))
        name = str(user.data[0]) if user.op == CALL and isinstance(user.data, tuple) else ""
        if compared or name == "id" or user.op == ATTRIBUTE and user.data in _ADDRESSES:
            return True
    return False


def _splits(captured: CapturedFunction, view: Value, v: Value) -> bool:
    """Whether a view has more dimensions than what is viewed: one is split, which any layout allows."""
    facts = Facts(captured.known)
    before, after = facts.rank(v), facts.rank(view)
    return before is not None and after is not None and after > before


def _keeps_layout(user: Value, v: Value) -> bool:
    if user.op in (CHOICE, OPAQUE, TUPLE, ITEM):
        return True
    if user.op == ATTRIBUTE:
        return user.data not in _METADATA  # a method that is not known: x.narrow, and what is called is used in turn
    if user.op == CALL and isinstance(user.data, tuple):
        return str(user.data[0]).startswith((".", "torch.")) and not str(user.data[0]).startswith("torch.nn.")
    if user.op not in OPS or user.op in _FRESH:
        return False
    if user.op in _SPLIT or user.op in _ELEMENTWISE or OPS[user.op].effect == "view" and user.inputs[0] is v:
        return True
    return OPS[user.op].keeps_sizes and user.inputs[0] is v


def returned_as_is(captured: CapturedFunction, result: Value) -> bool:
    """Whether `result`, in the layout that it has, is returned."""
    todo, seen = [result], {result}
    while todo:
        for user in captured.graph.users[todo.pop()]:
            if user.op == SINK and isinstance(user.data, Reason) and user.data.code is matches.VALUE_RETURNED:
                return True
            turned = user.op in TURNED or _keeps_layout(user, user.inputs[0])
            if user not in seen and turned and user.op != CALL:
                seen.add(user)
                todo.append(user)
    return False


def escapes(captured: CapturedFunction, result: Value) -> bool:
    """Whether `result`, in the layout that it has, is kept in an attribute or a container, or handed to a function."""
    todo, seen = [result], {result}
    while todo:
        for user in captured.graph.users[todo.pop()]:
            kept = user.op == SINK and isinstance(user.data, Reason) and user.data.code in _TAKEN
            name = str(user.data[0]) if user.op == CALL and isinstance(user.data, tuple) else "torch."
            if kept or user.op == SYNTAX or not name.startswith("torch.") and name not in HARMLESS:
                return True
            if user not in seen and (user.op in TURNED or _keeps_layout(user, user.inputs[0])):
                seen.add(user)
                todo.append(user)
    return False


def handed_to(captured: CapturedFunction, result: Value) -> Iterator[str]:
    """The functions of the file that are given `result`, in the layout that it has."""
    todo, seen = [result], {result}
    while todo:
        for user in captured.graph.users[todo.pop()]:
            if user.op == CALL and user.inputs[0].op in (GLOBAL, ATTRIBUTE):
                yield str(user.inputs[0].data)
            if user not in seen and (user.op in TURNED or _keeps_layout(user, user.inputs[0])):
                seen.add(user)
                todo.append(user)
