"""Finds the places where a file assigns, patches or hooks attributes of objects and modules from outside.

Examples:

- `model.drop = nn.Identity()`
- `setattr(model, "drop", f)`
- `model._modules["drop"] = f`
- `Attention.scores = f`
- `patch("model.helper")`
- `model.softmax.register_forward_hook(f)`

One walk over the syntax tree finds all changes of a file. receivers.py decides which class each attribute belongs to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import self_name, target_pairs
from autofuse.source.capture.syntax import cached_with_tree, parts, walk

_REGISTRATION_METHODS = ("add_module", "register_module", "register_buffer", "register_parameter")
_SETATTR_FUNCTIONS = ("setattr", "delattr", "object", "__setattr__", "__delattr__", "wrap_function_wrapper")
_ATTRIBUTE_TABLES = ("_modules", "__dict__", "_parameters", "_buffers")
_LIST_METHODS = ("append", "insert", "extend", "pop", "__setitem__", "__delitem__")
_HOOKS = (
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook", "register_backward_hook",
)  # fmt: skip
_REPARAMETRIZATIONS = (
    "weight_norm",
    "spectral_norm",
    "register_parametrization",
    "l1_unstructured",
    "random_unstructured",
)
_SUBMODULE_SEARCHES = frozenset(
    "named_children named_modules children modules _modules get_submodule rsplit setattr_recursive".split()
)
_WALKS = frozenset("named_children named_modules children modules _modules get_submodule".split())

_CHANGING_NODES = frozenset({ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.For, ast.With, ast.Call})
_SCOPE_NODES = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If})
Kind = Literal["assigned", "element", "hooked"]


@dataclass(frozen=True, eq=False)
class CodeChange:
    """A statement or call that changes the attribute `name` of the object `receiver`.

    Attributes:
        kind: "assigned", "element" for a part of the attribute's value, or "hooked".
        name: The attribute; None if the code computes the name, or changes any child.
        receiver: The expression of the object; None if there is none, and `path` may name the object.
        node: The statement or the call.
        value: The new value, if the text shows it.
        path: The dotted path of a patch: `patch("model.Attention.scores")`.
        conditions: The conditions of the `if` statements around the change.
        function: The function that makes the change.
        owner: The class that contains it.
    """

    kind: Kind
    name: str | None
    receiver: ast.expr | None
    node: ast.expr | ast.stmt
    value: ast.expr | None = None
    path: str = ""
    conditions: tuple[ast.expr, ...] = ()
    function: Function | None = None
    owner: ast.ClassDef | None = None

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass(frozen=True)
class _Position:
    """The position of the walk: the conditions, the function and the class around a node, and the file."""

    tree: ast.Module
    conditions: tuple[ast.expr, ...] = ()
    function: Function | None = None
    owner: ast.ClassDef | None = None


def find_changes(tree: ast.Module) -> tuple[CodeChange, ...]:
    """Returns every change of attributes in a file, in the order of lines. The result is kept with the tree."""
    changes: tuple[CodeChange, ...] = cached_with_tree(tree, "_changes", _collect_changes)
    return changes


def _collect_changes(tree: ast.Module) -> tuple[CodeChange, ...]:
    changes = list[CodeChange]()
    todo: list[tuple[ast.AST, _Position]] = [(tree, _Position(tree))]
    while todo:
        node, position = todo.pop()
        kind = node.__class__
        if kind in _CHANGING_NODES:
            changes += _changes_of_node(node, position)
        if kind not in _SCOPE_NODES:
            pass
        elif isinstance(node, Function):
            position = _Position(tree, (), node, position.owner)
        elif isinstance(node, ast.ClassDef):
            position = _Position(tree, (), None, node)
        elif isinstance(node, ast.If):
            inside = _Position(tree, (*position.conditions, node.test), position.function, position.owner)
            todo += [(s, inside) for s in node.body]
            todo += [(s, position) for s in (node.test, *node.orelse)]
            continue
        todo += [(child, position) for child in parts(node)]
    return tuple(sorted(changes, key=lambda child: child.line))


def _changes_of_node(node: ast.AST, position: _Position) -> Iterator[CodeChange]:
    match node:
        case ast.Call():
            yield from _changes_by_call(node, position)
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                for t, v in target_pairs(target, value):
                    yield from _changes_by_assignment(t, v, node, position)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _changes_by_assignment(target, value, node, position)
        case ast.AugAssign(target=target) | ast.For(target=target):
            yield from _changes_by_assignment(target, None, node, position)
        case ast.Delete(targets=targets):
            for target in targets:
                yield from _changes_by_assignment(target, None, node, position)
        case ast.With(items=items):
            for item in items:
                if item.optional_vars is not None:
                    yield from _changes_by_assignment(item.optional_vars, None, node, position)


def _changes_by_assignment(
    target: ast.expr, value: ast.expr | None, node: ast.stmt, position: _Position
) -> Iterator[CodeChange]:
    at = (position.conditions, position.function, position.owner)
    if isinstance(target, ast.Subscript) and (holder := _aliased_table(target.value, position)) is not None:
        target = ast.copy_location(ast.Subscript(holder, target.slice, target.ctx), target)
    match target:
        case ast.Attribute(value=receiver, attr=name):  # model.drop = f
            yield CodeChange("assigned", name, receiver, node, value, "", *at)
        # model.__dict__["_modules"]["drop"] = f
        case ast.Subscript(value=ast.Subscript(value=table, slice=ast.Constant("_modules")), slice=key) if (
            owner := _object_of_table(table)
        ) is not None:
            yield CodeChange("assigned", _string_value(key), owner, node, value, "", *at)
        # model._modules["drop"] = f. A computed key of `__dict__` counts only if the code searches for modules: other
        # code often sets plain attributes that way.
        case ast.Subscript(value=ast.Attribute(value=receiver, attr=table), slice=key) if table in _ATTRIBUTE_TABLES:
            key_text = _string_value(key)
            if key_text is not None or table == "_modules" or searches_modules(position.function):
                yield CodeChange("assigned", key_text, receiver, node, value, "", *at)
        # vars(model)["drop"] = f
        case ast.Subscript(value=ast.Call(func=ast.Name(id="vars"), args=[receiver]), slice=ast.Constant(str(name))):
            yield CodeChange("assigned", name, receiver, node, value, "", *at)
        # forward.__globals__["helper"] = f
        case ast.Subscript(value=ast.Attribute(attr="__globals__") as receiver, slice=ast.Constant(str(name))):
            yield CodeChange("assigned", name, receiver, node, value, "", *at)
        # globals()["helper"] = f
        case ast.Subscript(value=ast.Call(func=ast.Name(id="globals")) as receiver, slice=ast.Constant(str(name))):
            yield CodeChange("assigned", name, receiver, node, value, "", *at)
        case ast.Subscript(value=container):  # model.net[1] = f
            yield from _element_change(container, node, position)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for part in elements:
                yield from _changes_by_assignment(part, None, node, position)
        case ast.Starred(value=part):
            yield from _changes_by_assignment(part, None, node, position)


def _aliased_table(node: ast.expr, position: _Position) -> ast.expr | None:
    """The table of attributes that a name stands for: `table = vars(model)`, `children = model._modules`."""
    if not isinstance(node, ast.Name):
        return None
    for n in walk(position.function or position.tree):
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets):
            if _object_of_table(n.value) is not None:
                return n.value
    return None


def _element_change(container: ast.expr, node: ast.expr | ast.stmt, position: _Position) -> Iterator[CodeChange]:
    """Yields a change of one element of an attribute's value: `model.net[1] = nn.Identity()`."""
    value = resolve_alias(container, position.function)
    if isinstance(value, ast.Attribute):
        yield CodeChange(
            "element", value.attr, value.value, node, None, "", position.conditions, position.function, position.owner
        )


def _changes_by_call(call: ast.Call, position: _Position) -> Iterator[CodeChange]:
    function, at = call.func, (position.conditions, position.function, position.owner)
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    first = call.args[0] if call.args else None
    owner = function.value if isinstance(function, ast.Attribute) else None
    if last in _HOOKS and owner is not None:
        yield from _hook_changes(owner, call, position)
    elif last.startswith("register_module_") and last.endswith("_hook"):  # a global hook, for all modules
        yield CodeChange("hooked", None, None, call, None, "", *at)
    elif last in _REPARAMETRIZATIONS and first is not None:
        yield from _hook_changes(first, call, position)
    elif last in _REGISTRATION_METHODS and owner is not None and (name := _string_value(first)) is not None:
        yield CodeChange("assigned", name, owner, call, call.args[1] if len(call.args) > 1 else None, "", *at)
    elif last == "set_submodule" and owner is not None:  # model.set_submodule("block.drop", f)
        path = _string_value(first)
        value = call.args[1] if len(call.args) > 1 else None
        yield CodeChange("assigned", path.rpartition(".")[2] if path else None, None, call, value, "", *at)
    elif (
        last in ("dict", "__setitem__") and (holder := _object_of_table(first if last == "dict" else owner)) is not None
    ):
        names = [k.arg for k in call.keywords] if last == "dict" else [_string_value(first)]
        names += [_string_value(k) for d in call.args[1:] if isinstance(d, ast.Dict) for k in d.keys]
        yield from (CodeChange("assigned", n, holder, call, None, "", *at) for n in names)
    # patch("model.helper"), monkeypatch.setattr("model.helper", f)
    elif last in ("patch", "setattr", "dict") and (path := _string_value(first)) is not None and "." in path:
        yield CodeChange("assigned", path.rpartition(".")[2], None, call, None, path, *at)
    elif last in _SETATTR_FUNCTIONS and (arguments := _object_and_name(call, owner, position)) is not None:
        yield from _changes_by_setattr(call, *arguments, position)
    elif last in ("multiple", "update") and (holder := _updated_object(call, last)) is not None:
        names = [k.arg for k in call.keywords]
        names += [_string_value(k) for d in call.args if isinstance(d, ast.Dict) for k in d.keys]
        yield from (CodeChange("assigned", n, holder, call, None, "", *at) for n in names if n)
    elif last in _LIST_METHODS and isinstance(owner, ast.Attribute):
        yield from _element_change(owner, call, position)


def _changes_by_setattr(
    call: ast.Call, receiver: ast.expr, name: ast.expr, value: ast.expr | None, position: _Position
) -> Iterator[CodeChange]:
    """`setattr(model, "drop", f)`. A name that a loop takes from a list of strings is each of them."""
    at = (position.conditions, position.function, position.owner)
    names: Sequence[str | None] = _looped_strings(name, position.function) or [_string_value(name)]
    yield from (CodeChange("assigned", n, receiver, call, value, "", *at) for n in names)


def _looped_strings(name: ast.expr, function: Function | None) -> list[str]:
    """The strings that a name is bound to by a loop over a literal list, if nothing else in the function binds it."""
    if not isinstance(name, ast.Name) or function is None:
        return []
    nodes = list(walk(function))
    loops = [n for n in nodes if isinstance(n, ast.For) and isinstance(n.target, ast.Name) and n.target.id == name.id]
    bindings = sum(isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Store) for n in nodes)
    is_parameter = any(isinstance(n, ast.arg) and n.arg == name.id for n in nodes)
    if len(loops) != 1 or bindings != 1 or is_parameter:
        return []
    listed: ast.expr | None = loops[0].iter
    if isinstance(listed, ast.Name):
        listed = _only_value(listed.id, nodes)
    elements = listed.elts if isinstance(listed, (ast.List, ast.Tuple, ast.Set)) else []
    strings = [s for e in elements if (s := _string_value(e)) is not None]
    return strings if len(strings) == len(elements) else []


def _only_value(name: str, nodes: list[ast.AST]) -> ast.expr | None:
    """The value of a name that is assigned once and that only loops read, so nothing is appended to it."""
    values = [
        n.value for n in nodes
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
    ]  # fmt: skip
    uses = sum(isinstance(n, ast.Name) and n.id == name for n in nodes)
    iterated = sum(isinstance(n, ast.For) and isinstance(n.iter, ast.Name) and n.iter.id == name for n in nodes)
    return values[0] if len(values) == 1 and uses == 1 + iterated else None


def _object_and_name(
    call: ast.Call, owner: ast.expr | None, position: _Position
) -> tuple[ast.expr, ast.expr, ast.expr | None] | None:
    """Returns object, name and value of `setattr(o, n, v)`, `o.__setattr__(n, v)`, `patch.object(o, n)`."""
    arguments = list(call.args)
    bound_count = {"__setattr__": 2, "__delattr__": 1}.get(getattr(call.func, "attr", ""))
    if owner is not None and len(arguments) == bound_count:  # with one more argument, the method is called unbound
        arguments = [_instance_of_super(owner, position), *arguments]
    if len(arguments) < 2:
        return None
    return arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else None


def _instance_of_super(owner: ast.expr, position: _Position) -> ast.expr:
    """The instance that `super()` stands for; any other expression, and `super()` of a metaclass, stays as it is."""
    is_super = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
    name = self_name(position.function) if position.function is not None else None
    bases = position.owner.bases if position.owner is not None else []
    is_metaclass = any(getattr(b, "attr", getattr(b, "id", "")).lower().endswith(("type", "meta")) for b in bases)
    if not is_super or name is None or is_metaclass:
        return owner
    return ast.copy_location(ast.Name(name, ast.Load()), owner)


def _updated_object(call: ast.Call, last: str) -> ast.expr | None:
    """Returns `o` of `patch.multiple(o, name=f)`, `vars(o).update(name=f)` and `o.__dict__.update(name=f)`."""
    if last == "multiple":
        return call.args[0] if call.args else None
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "globals":
        return owner
    return _object_of_table(owner)


def _object_of_table(table: ast.expr | None) -> ast.expr | None:
    """Returns `o` of `o.__dict__`, `o._modules` or `vars(o)`."""
    match table:
        case ast.Attribute(value=owner, attr=name) if name in _ATTRIBUTE_TABLES:
            return owner
        case ast.Call(func=ast.Name(id="vars"), args=[owner]):
            return owner
        case ast.Subscript(value=inner, slice=ast.Constant(value=str(name))) if name in _ATTRIBUTE_TABLES:
            return _object_of_table(inner)
    return None


def _hook_changes(module: ast.expr, call: ast.Call, position: _Position) -> Iterator[CodeChange]:
    """Yields a change for a module that gets a hook. Its name is None if the text does not show which attribute."""
    at = (position.conditions, position.function, position.owner)
    value = resolve_alias(module, position.function)
    while isinstance(value, ast.Subscript):
        value = value.value
    if isinstance(value, ast.Attribute):
        yield CodeChange("hooked", value.attr, value.value, call, None, "", *at)
    elif isinstance(value, ast.Call) and (path := _string_value(value.args[0] if value.args else None)) is not None:
        yield CodeChange("hooked", path.rpartition(".")[2], None, call, None, "", *at)
    else:
        yield CodeChange("hooked", None, value, call, None, "", *at)


def resolve_alias(node: ast.expr, function: Function | None) -> ast.expr:
    """Returns the attribute that a local name is assigned, `softmax = model.softmax`; else the node itself."""
    if not isinstance(node, ast.Name) or function is None:
        return node
    assigned = [
        n.value
        for n in walk(function)
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)
    ]
    value = assigned[-1] if len(assigned) == 1 else node
    return value if isinstance(value, (ast.Attribute, ast.Subscript)) else node


@lru_cache(maxsize=256)
def searches_modules(function: Function | None) -> bool:
    """Whether a function searches a model for submodules: `model.named_modules()`."""
    return function is not None and any(map(_names_a_search, walk(function)))


def file_searches_modules(tree: ast.Module) -> bool:
    """Whether any function of a file walks over the modules of a model."""
    return any(isinstance(n, ast.Attribute) and n.attr in _WALKS for n in walk(tree))


def _names_a_search(n: ast.AST) -> bool:
    name = n.attr if isinstance(n, ast.Attribute) else n.id if isinstance(n, ast.Name) else ""
    return name in _SUBMODULE_SEARCHES


def _string_value(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
