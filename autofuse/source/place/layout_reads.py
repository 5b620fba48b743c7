"""Does code rely on how a result lies in memory? `x.view(b * h, t, d)` joins dimensions only where they adjoin.

A product of matrices is contiguous; what a fused kernel returns may lie otherwise. Follows a result through what keeps
its layout, and into the code of the file that calls the function. Edits nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.facts import Facts
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, ITEM, OPAQUE, SINK, SYNTAX, TUPLE, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.vocabulary import OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import Reason
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.scope import ClassScope
from autofuse.source.capture.syntax import walk

_ASKED = frozenset(
    "stride is_contiguous data_ptr storage_offset as_strided storage untyped_storage __array_interface__".split()
)
_TURNED = frozenset("transpose permute mT t T mH H swapaxes".split())
_SPLIT = frozenset("chunk split unbind select squeeze unsqueeze detach identity".split())
_ELEMENTWISE = frozenset("add sub rsub mul div dropout clone to float double half bfloat16 type_as masked_fill".split())
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
            elif user.op in _TURNED or user.op == ATTRIBUTE and user.data in _TURNED:
                todo.append((user, True))
            elif _keeps_layout(user, v):
                todo.append((user, turned))


def _asks(captured: CapturedFunction, user: Value, v: Value) -> bool:
    if user.op == "view":
        return ".view" in captured.spelled.get(user, ()) and not _splits(captured, user, v)
    if user.op == ATTRIBUTE:
        return user.data in _ASKED
    if user.op == CALL and isinstance(user.data, tuple) and str(user.data[0]).startswith("torch."):
        return str(user.data[0]).rpartition(".")[2] in _ASKED | {"view", "view_as"}
    return user.op == "view_as" and ".view_as" in captured.spelled.get(user, ())


def _splits(captured: CapturedFunction, view: Value, v: Value) -> bool:
    """Whether a view has more dimensions than what is viewed: one is split, which any layout allows."""
    facts = Facts(captured.known)
    before, after = facts.rank(v), facts.rank(view)
    return before is not None and after is not None and after > before


def _keeps_layout(user: Value, v: Value) -> bool:
    if user.op in (CHOICE, OPAQUE, TUPLE, ITEM):
        return True
    if user.op not in OPS or user.op in _FRESH:
        return False
    return user.op in _SPLIT or user.op in _ELEMENTWISE or OPS[user.op].keeps_sizes and user.inputs[0] is v


def returned_as_is(captured: CapturedFunction, result: Value) -> bool:
    """Whether `result`, in the layout that it has, is returned."""
    todo, seen = [result], {result}
    while todo:
        for user in captured.graph.users[todo.pop()]:
            if user.op == SINK and isinstance(user.data, Reason) and user.data.code is matches.VALUE_RETURNED:
                return True
            turned = user.op in _TURNED or _keeps_layout(user, user.inputs[0])
            if user not in seen and turned and user.op != CALL:
                seen.add(user)
                todo.append(user)
    return False


def escapes(captured: CapturedFunction, result: Value) -> bool:
    """Whether `result`, in the layout that it has, is kept in an attribute or a container, or handed to a function."""
    todo, seen = [result], {result}
    while todo:
        for user in captured.graph.users[todo.pop()]:
            kept = user.op == SINK and isinstance(user.data, Reason) and user.data.code is matches.VALUE_STORED
            name = str(user.data[0]) if user.op == CALL and isinstance(user.data, tuple) else "torch."
            if kept or user.op == SYNTAX or not name.startswith("torch.") and name not in HARMLESS:
                return True
            if user not in seen and (user.op in _TURNED or _keeps_layout(user, user.inputs[0])):
                seen.add(user)
                todo.append(user)
    return False


def asked_anywhere(tree: ast.Module) -> bool:
    """Whether a file asks for the layout of anything."""
    return any(isinstance(n, ast.Attribute) and (n.attr in _ASKED or n.attr in ("view", "view_as")) for n in walk(tree))


def callers_ask(tree: ast.Module, function: Function, owner: ClassScope | None) -> bool:
    """Whether some call of `function` in its file is followed by a read of the layout of what it returns."""
    names = {function.name, *(_attributes_of(tree, owner) if function.name in ("forward", "__call__") else ())}
    for scope in walk(tree):
        if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)) or scope is function:
            continue
        results = {id(n) for n in walk(scope) if isinstance(n, ast.Call) and _called(n) in names}
        held = {t for n in walk(scope) if isinstance(n, ast.Assign) and _holds(n.value, results) for t in _targets(n)}
        for n in walk(scope):
            if isinstance(n, ast.Attribute) and (n.attr in _ASKED or n.attr in ("view", "view_as")):
                if _starts_at(n.value, results, held):
                    return True
    return False


def _attributes_of(tree: ast.Module, owner: ClassScope | None) -> Iterator[str]:
    """The names that instances of a class are kept under: attn of `self.attn = Attention(dim)`."""
    name = owner.node.name if owner else ""
    for n in walk(tree):
        if isinstance(n, ast.Assign) and any(isinstance(c, ast.Name) and c.id == name for c in walk(n.value)):
            yield from (t.attr if isinstance(t, ast.Attribute) else getattr(t, "id", "") for t in n.targets)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _holds(value: ast.expr, results: set[int]) -> bool:
    return any(id(n) in results for n in walk(value))


def _targets(assigned: ast.Assign) -> Iterator[str]:
    return (n.id for t in assigned.targets for n in walk(t) if isinstance(n, ast.Name))


def _starts_at(node: ast.expr, results: set[int], held: set[str]) -> bool:
    """Whether an expression is one of `results`, or a name that holds one, possibly turned or cast."""
    while True:
        if id(node) in results or isinstance(node, ast.Name) and node.id in held:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr != "contiguous":
            node = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.BinOp):
            return _starts_at(node.left, results, held) or _starts_at(node.right, results, held)
        else:
            return False
