"""The names that a function reads: attributes of its class, and functions and variables of its file.

The edit of `self.softmax(self.scores(q, k)) @ v` is correct only if the class itself defines `self.softmax` and
`self.scores`. This file also follows the helpers and children that the capture may inline. It looks at syntax and
scopes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.children import inlinable_child
from autofuse.source.capture.scope import ClassScope, DefinedFunction, FileScope, self_name
from autofuse.source.capture.syntax import walk


@dataclass(frozen=True, eq=False)
class NameUse:
    """A name that a function reads.

    Attributes:
        owner: the class of the instance that has the attribute; None for a name of the file.
        scope: the file of the class, or the file of the name.
        name: the name.
        via: the name that the edited function itself reads to get there: `drop`, if the module `self.drop` reads
            `name`.
        inner: whether the name is read in a child module and not in the class itself.
    """

    owner: ClassScope | None
    scope: FileScope
    name: str
    via: str
    inner: bool = False


@dataclass(eq=False)
class NamesRead:
    """Everything that one function reads.

    Attributes:
        names: attributes, helpers and file variables.
        torch: full torch name -> the `via` of the children created with it.
        methods: the methods that it calls: `softmax` of `x.softmax(-1)`, `__matmul__` of `q @ k`.
    """

    names: list[NameUse] = field(default_factory=list)
    torch: dict[str, set[str]] = field(default_factory=dict)
    methods: set[str] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class _FunctionText:
    """A function to read, with its class, its `self` name and its file."""

    node: Function
    owner: ClassScope | None
    me: str | None
    scope: FileScope
    via: str = ""
    inner: bool = False


def find_names_read(defined: DefinedFunction) -> NamesRead:
    """Return the names that the function reads, directly or through helpers and children."""
    names, visited = NamesRead(), set[tuple[int, str]]()
    self_parameter = defined.instance_name or (self_name(defined.function) if defined.owner else None)
    pending = [_FunctionText(defined.function, defined.owner, self_parameter, defined.scope)]
    while pending:
        text = pending.pop()
        if (id(text.node), text.via) in visited:
            continue
        visited.add((id(text.node), text.via))
        pending += _read_function(text, names)
    return names


def _read_function(text: _FunctionText, names: NamesRead) -> Iterator[_FunctionText]:
    """Add the names that `text` reads to `names`; yield the functions that the capture may inline in it."""
    for n in walk(text.node):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == text.me:
            yield from _read_attribute(text, n.attr, names)
        elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            yield from _read_file_name(text, n.id, names)
        if isinstance(n, (ast.Name, ast.Attribute)) and (name := text.scope.name_of(n)):
            names.torch.setdefault(name, set())
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            names.methods.add(n.func.attr)
        if isinstance(n, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.AugAssign, ast.Subscript)):
            names.methods |= operator_methods(n)


def operator_methods(n: ast.expr | ast.stmt) -> set[str]:
    """Return the methods that an operator calls: `__matmul__` and `__rmatmul__` for `q @ k`."""
    match n:
        case ast.Subscript():
            return {"__getitem__"}
        case ast.AugAssign(op=op):
            return {f"__i{_OPERATORS[type(op)]}__", f"__{_OPERATORS[type(op)]}__"}
        case ast.BinOp(op=op):
            return {f"__{_OPERATORS[type(op)]}__", f"__r{_OPERATORS[type(op)]}__"}
        case ast.UnaryOp(op=op):
            return {f"__{_OPERATORS.get(type(op), 'bool')}__"}
        case ast.Compare(ops=ops):
            return {f"__{_OPERATORS[type(op)]}__" for op in ops if type(op) in _OPERATORS}
    return set()


_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.LShift: "lshift", ast.RShift: "rshift", ast.BitAnd: "and",
    ast.BitOr: "or", ast.BitXor: "xor", ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert", ast.Eq: "eq",
    ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip


def _read_attribute(text: _FunctionText, name: str, names: NamesRead) -> Iterator[_FunctionText]:
    via, scope, owner = text.via or name, text.scope, text.owner
    if owner is None:
        return
    if not any(r.name == name and r.via == via and r.owner is owner for r in names.names):
        names.names.append(NameUse(owner, scope, name, via, text.inner))
    method = scope.method(owner, name)
    if method is not None:
        yield _FunctionText(method, owner, self_name(method), scope, via, text.inner)
    for call in _calls(scope.attribute(owner, name)):
        names.torch.setdefault(scope.name_of(call.func) or "", set()).add(via)
        if (child := inlinable_child(scope, call)) is not None:
            yield _FunctionText(child.forward, child.owner, self_name(child.forward), child.scope, via, True)


def _read_file_name(text: _FunctionText, name: str, names: NamesRead) -> Iterator[_FunctionText]:
    scope, via = text.scope, text.via or name
    if name not in scope.functions and name not in scope.variables:
        return
    if not any(r.name == name and r.owner is None for r in names.names):
        names.names.append(NameUse(None, scope, name, via, text.inner))
    if name in scope.functions:
        yield _FunctionText(scope.functions[name], None, None, scope, via, text.inner)


def _calls(assigned: ast.expr | None) -> Iterator[ast.Call]:
    return (n for n in walk(assigned) if isinstance(n, ast.Call)) if assigned is not None else iter(())
