"""Does code rely on how a result lies in memory? `x.view(b * h, t, d)` joins dimensions only where they adjoin.

A product of matrices is contiguous; what a fused kernel returns may lie otherwise. Follows a result through what keeps
its layout, and into the code of the file that calls the function. Edits nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from autofuse.ir.facts import Facts
from autofuse.ir.graph import ATTRIBUTE, CALL, CHOICE, ITEM, OPAQUE, SINK, SYNTAX, TUPLE, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.vocabulary import OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import Reason
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.scope import ClassScope
from autofuse.source.capture.syntax import children, walk

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


class LayoutIndex:
    """Which calls of a file, and which names, are followed by a read of a layout, by the scope that reads it."""

    def __init__(self, tree: ast.Module) -> None:
        self.asked_anywhere = False
        self._calls: dict[str, list[_Called]] = {}  # by the last part of the name that is called
        self._asked: dict[ast.AST, tuple[set[ast.Call], set[str]]] = {}
        self._kept_under: dict[str, list[str]] = {}
        self._read(tree)

    def _read(self, tree: ast.Module) -> None:
        todo: list[tuple[ast.AST, tuple[ast.AST, ...], frozenset[str]]] = [(tree, (), frozenset())]
        while todo:
            node, scopes, targets = todo.pop()
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
                scopes = (*scopes, node)
            elif isinstance(node, ast.Assign):
                targets |= {n.id for t in node.targets for n in walk(t) if isinstance(n, ast.Name)}
                kept = [t.attr if isinstance(t, ast.Attribute) else getattr(t, "id", "") for t in node.targets]
                for name in {c.id for c in walk(node.value) if isinstance(c, ast.Name)}:
                    self._kept_under.setdefault(name, []).extend(kept)
            elif isinstance(node, ast.Call):
                self._calls.setdefault(_name_called(node), []).append(_Called(node, scopes, targets))
            elif isinstance(node, ast.Attribute) and (node.attr in _ASKED or node.attr in ("view", "view_as")):
                self.asked_anywhere = True
                for scope in scopes:
                    _starts(node.value, *self._asked.setdefault(scope, (set(), set())))
            todo += [(child, scopes, targets) for child in children(node)]

    def callers_ask(self, function: Function, owner: ClassScope | None) -> bool:
        """Whether some call of `function` in its file is followed by a read of the layout of what it returns."""
        names = {function.name}
        if function.name in ("forward", "__call__") and owner is not None:
            names.update(self._kept_under.get(owner.node.name, ()))  # attn of `self.attn = Attention(dim)`
        return any(self._is_asked(c, function) for n in names for c in self._calls.get(n, ()))

    def _is_asked(self, called: _Called, function: Function) -> bool:
        for scope in called.scopes:
            if scope in self._asked and scope is not function:
                calls, held = self._asked[scope]
                if called.node in calls or not held.isdisjoint(called.targets):
                    return True
        return False


@dataclass(frozen=True, eq=False)
class _Called:
    """A call, the functions that it stands in, and the names that are bound to what it is a part of."""

    node: ast.Call
    scopes: tuple[ast.AST, ...]
    targets: frozenset[str]


def _name_called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _starts(node: ast.expr, calls: set[ast.Call], names: set[str]) -> None:
    """Adds the calls and the names that an expression may start at: `attend(x)` in `attend(x).float()[0]`."""
    while True:
        if isinstance(node, ast.Name):
            names.add(node.id)
            return
        if isinstance(node, ast.Call):
            calls.add(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr != "contiguous":
            node = node.func.value
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.BinOp):
            _starts(node.left, calls, names)
            node = node.right
        else:
            return
