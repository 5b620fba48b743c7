"""What a file does to attributes of objects and modules from outside: assigns them, patches them, hooks them.

`model.drop = nn.Identity()`, `setattr(model, "drop", f)`, `model._modules["drop"] = f`, `Attention.scores = f`,
`patch("model.helper")`, `model.softmax.register_forward_hook(f)`. One walk over a file gives all of them; whose
attribute it is, is the business of receivers.py. Knows syntax only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import target_pairs
from autofuse.source.capture.syntax import kept_with, parts, walk

_OF_ITS_OWN = ("add_module", "register_module", "register_buffer", "register_parameter")
_WITH_OBJECT = ("setattr", "delattr", "object", "__setattr__", "__delattr__", "wrap_function_wrapper")
_TABLES = ("_modules", "__dict__", "_parameters", "_buffers")
_LIST_METHODS = ("append", "insert", "extend", "pop", "__setitem__", "__delitem__")
_HOOKS = (
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook", "register_backward_hook",
)  # fmt: skip
_REPARAMETRIZES = ("weight_norm", "spectral_norm", "register_parametrization", "l1_unstructured", "random_unstructured")
_WALKS = frozenset(
    "named_children named_modules children modules _modules get_submodule rsplit setattr_recursive".split()
)

_CHANGING = frozenset({ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.For, ast.With, ast.Call})
_AROUND = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If})
Kind = Literal["assigned", "element", "hooked"]


@dataclass(frozen=True, eq=False)
class CodeChange:
    """`name` of `receiver` becomes something else; None for a name that is computed, and for any child.

    `receiver` is None where the text does not give an expression for it: `path` may then name it, as
    `patch("model.Attention.scores")` does. `value` is what is assigned, where the text gives it. `around`: the tests
    of the `if` statements that it stands in, and `function`, `owner`: the function and the class.
    """

    kind: Kind
    name: str | None
    receiver: ast.expr | None
    node: ast.expr | ast.stmt
    value: ast.expr | None = None
    path: str = ""
    around: tuple[ast.expr, ...] = ()
    function: Function | None = None
    owner: ast.ClassDef | None = None

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass(frozen=True)
class _Place:
    """Where the walk is."""

    around: tuple[ast.expr, ...] = ()
    function: Function | None = None
    owner: ast.ClassDef | None = None


def changes_in(tree: ast.Module) -> tuple[CodeChange, ...]:
    """Every change that a file makes to attributes, by line. It is found once."""
    made: tuple[CodeChange, ...] = kept_with(tree, "_changes", _changes_in)
    return made


def _changes_in(tree: ast.Module) -> tuple[CodeChange, ...]:
    found = list[CodeChange]()
    todo: list[tuple[ast.AST, _Place]] = [(tree, _Place())]
    while todo:
        node, place = todo.pop()
        kind = node.__class__
        if kind in _CHANGING:
            found += _made(node, place)
        if kind not in _AROUND:
            pass
        elif isinstance(node, Function):
            place = _Place((), node, place.owner)
        elif isinstance(node, ast.ClassDef):
            place = _Place((), None, node)
        elif isinstance(node, ast.If):
            inside = _Place((*place.around, node.test), place.function, place.owner)
            todo += [(s, inside) for s in node.body]
            todo += [(s, place) for s in (node.test, *node.orelse)]
            continue
        todo += [(c, place) for c in parts(node)]
    return tuple(sorted(found, key=lambda c: c.line))


def _made(node: ast.AST, place: _Place) -> Iterator[CodeChange]:
    match node:
        case ast.Call():
            yield from _by_call(node, place)
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                for t, v in target_pairs(target, value):
                    yield from _stored(t, v, node, place)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _stored(target, value, node, place)
        case ast.AugAssign(target=target) | ast.For(target=target):
            yield from _stored(target, None, node, place)
        case ast.Delete(targets=targets):
            for target in targets:
                yield from _stored(target, None, node, place)
        case ast.With(items=items):
            for item in items:
                if item.optional_vars is not None:
                    yield from _stored(item.optional_vars, None, node, place)


def _stored(target: ast.expr, value: ast.expr | None, node: ast.stmt, place: _Place) -> Iterator[CodeChange]:
    at = (place.around, place.function, place.owner)
    match target:
        case ast.Attribute(value=receiver, attr=name):
            yield CodeChange("assigned", name, receiver, node, value, "", *at)
        case ast.Subscript(value=ast.Subscript(value=table, slice=ast.Constant("_modules")), slice=key) if (
            holder := _whose_table(table)
        ) is not None:
            yield CodeChange("assigned", _text(key), holder, node, value, "", *at)
        case ast.Subscript(value=ast.Attribute(value=receiver, attr=table), slice=key) if table in _TABLES:
            if (known := _text(key)) is not None or table == "_modules" or looks_for_modules(place.function):
                yield CodeChange("assigned", known, receiver, node, value, "", *at)
        case ast.Subscript(value=ast.Call(func=ast.Name(id="vars"), args=[receiver]), slice=ast.Constant(str(name))):
            yield CodeChange("assigned", name, receiver, node, value, "", *at)
        case ast.Subscript(value=ast.Call(func=ast.Name(id="globals")) as receiver, slice=ast.Constant(str(name))):
            yield CodeChange("assigned", name, receiver, node, value, "", *at)
        case ast.Subscript(value=container):
            yield from _element(container, node, place)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _stored(part, None, node, place)
        case ast.Starred(value=part):
            yield from _stored(part, None, node, place)


def _element(container: ast.expr, node: ast.expr | ast.stmt, place: _Place) -> Iterator[CodeChange]:
    """A part of what an attribute holds is replaced: `model.net[1] = nn.Identity()`."""
    held = aliased(container, place.function)
    if isinstance(held, ast.Attribute):
        yield CodeChange("element", held.attr, held.value, node, None, "", place.around, place.function, place.owner)


def _by_call(call: ast.Call, place: _Place) -> Iterator[CodeChange]:
    function, at = call.func, (place.around, place.function, place.owner)
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    first = call.args[0] if call.args else None
    owner = function.value if isinstance(function, ast.Attribute) else None
    if last in _HOOKS and owner is not None:
        yield from _hooked(owner, call, place)
    elif last.startswith("register_module_") and last.endswith("_hook"):
        yield CodeChange("hooked", None, None, call, None, "", *at)
    elif last in _REPARAMETRIZES and first is not None:
        yield from _hooked(first, call, place)
    elif last in _OF_ITS_OWN and owner is not None and (name := _text(first)) is not None:
        yield CodeChange("assigned", name, owner, call, call.args[1] if len(call.args) > 1 else None, "", *at)
    elif last == "set_submodule" and owner is not None:
        path = _text(first)
        value = call.args[1] if len(call.args) > 1 else None
        yield CodeChange("assigned", path.rpartition(".")[2] if path else None, None, call, value, "", *at)
    elif last in ("dict", "__setitem__") and (holder := _whose_table(first if last == "dict" else owner)) is not None:
        names = [k.arg for k in call.keywords] if last == "dict" else [_text(first)]
        names += [_text(k) for d in call.args[1:] if isinstance(d, ast.Dict) for k in d.keys]
        yield from (CodeChange("assigned", n, holder, call, None, "", *at) for n in names)
    elif last in ("patch", "setattr", "dict") and (path := _text(first)) is not None and "." in path:
        yield CodeChange("assigned", path.rpartition(".")[2], None, call, None, path, *at)
    elif last in _WITH_OBJECT and (given := _object_and_name(call, owner)) is not None:
        yield from _by_name(call, *given, place)
    elif last in ("multiple", "update") and (holder := _holder(call, last)) is not None:
        names = [k.arg for k in call.keywords]
        names += [_text(k) for d in call.args if isinstance(d, ast.Dict) for k in d.keys]
        yield from (CodeChange("assigned", n, holder, call, None, "", *at) for n in names if n)
    elif last in _LIST_METHODS and isinstance(owner, ast.Attribute):
        yield from _element(owner, call, place)


def _by_name(
    call: ast.Call, receiver: ast.expr, name: ast.expr, value: ast.expr | None, place: _Place
) -> Iterator[CodeChange]:
    """`setattr(model, "drop", f)`."""
    yield CodeChange("assigned", _text(name), receiver, call, value, "", place.around, place.function, place.owner)


def _object_and_name(call: ast.Call, owner: ast.expr | None) -> tuple[ast.expr, ast.expr, ast.expr | None] | None:
    """The object, the name and the value of `setattr(o, n, v)`, `o.__setattr__(n, v)`, `patch.object(o, n)`."""
    given = list(call.args)
    bound = isinstance(call.func, ast.Attribute) and call.func.attr in ("__setattr__", "__delattr__")
    plain = isinstance(owner, ast.Name) and owner.id in ("object", "type") or isinstance(owner, ast.Call)
    if bound and not plain and owner is not None and len(given) < 3:
        given = [owner, *given]
    if len(given) < 2:
        return None
    return given[0], given[1], given[2] if len(given) > 2 else None


def _holder(call: ast.Call, last: str) -> ast.expr | None:
    """The object of `patch.multiple(o, name=f)`, `vars(o).update(name=f)` and `o.__dict__.update(name=f)`."""
    if last == "multiple":
        return call.args[0] if call.args else None
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "globals":
        return owner
    return _whose_table(owner)


def _whose_table(table: ast.expr | None) -> ast.expr | None:
    """The object whose attributes are in `o.__dict__`, `o._modules` or `vars(o)`."""
    match table:
        case ast.Attribute(value=owner, attr=name) if name in _TABLES:
            return owner
        case ast.Call(func=ast.Name(id="vars"), args=[owner]):
            return owner
        case ast.Subscript(value=inner, slice=ast.Constant(value=str(name))) if name in _TABLES:
            return _whose_table(inner)
    return None


def _hooked(module: ast.expr, call: ast.Call, place: _Place) -> Iterator[CodeChange]:
    """A module that gets a hook: by the attribute that holds it, or any module where the text does not say which."""
    at = (place.around, place.function, place.owner)
    held = aliased(module, place.function)
    while isinstance(held, ast.Subscript):
        held = held.value
    if isinstance(held, ast.Attribute):
        yield CodeChange("hooked", held.attr, held.value, call, None, "", *at)
    elif isinstance(held, ast.Call) and (path := _text(held.args[0] if held.args else None)) is not None:
        yield CodeChange("hooked", path.rpartition(".")[2], None, call, None, "", *at)
    else:
        yield CodeChange("hooked", None, held, call, None, "", *at)


def aliased(node: ast.expr, function: Function | None) -> ast.expr:
    """What a local name was assigned, if that is an attribute: `softmax = model.softmax`."""
    if not isinstance(node, ast.Name) or function is None:
        return node
    given = [
        n.value
        for n in walk(function)
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)
    ]
    last = given[-1] if len(given) == 1 else node
    return last if isinstance(last, (ast.Attribute, ast.Subscript)) else node


@lru_cache(maxsize=256)
def looks_for_modules(function: Function | None) -> bool:
    """Whether a function looks for modules inside of modules."""
    if function is None:
        return False
    return any(
        isinstance(n, ast.Attribute) and n.attr in _WALKS or isinstance(n, ast.Name) and n.id in _WALKS
        for n in walk(function)
    )


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
