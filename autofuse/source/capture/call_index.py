"""Indexes the calls of functions and modules in a file, including calls under other names.

The index follows the names that may hold a function or module:

- `self.attn = Attention(dim)`
- `for attn, ff in self.layers`
- `apply(attend, q)` and `functools.partial(attend, q)`
- `TABLE = {"attend": attend}`
- `@decorator`

It compares only the last parts of names. So it may report a call of another object with the same name, but it misses
no call.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import target_pairs
from autofuse.source.capture.syntax import cached_with_tree, children, parts, walk

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Calls that take numbers or tensors, but no functions or modules.
_TAKE_NUMBERS = frozenset(
    "Linear Embedding LayerNorm RMSNorm Dropout Conv1d Conv2d Conv3d BatchNorm1d BatchNorm2d GroupNorm Parameter int "
    "float len range zeros ones randn rand arange tensor".split()
)
# Functions that call one of their arguments with the other arguments.
_CALL_THEIR_ARGUMENT = frozenset(
    "map starmap filter partial checkpoint vmap submit apply_async tree_map run_in_executor functional_call".split()
)
# Methods that store an argument in their object.
_STORE_THEIR_ARGUMENT = frozenset("append extend insert add_module register_module setattr".split())
# Methods of a module that return the module.
_RETURN_THEIR_MODULE = frozenset(
    "eval train to cuda cpu xpu half float double bfloat16 requires_grad_ compile apply share_memory".split()
)


# The nodes that the index reads. It only descends into all others.
_HANDLED_NODES = frozenset(
    {
        *_FUNCTIONS,
        ast.Module,
        ast.Assign,
        ast.AnnAssign,
        ast.NamedExpr,
        ast.For,
        ast.comprehension,
        ast.Return,
        ast.Call,
    }
)


class _StringConstant(ast.Constant):
    value: str


FORWARD = ("forward", "__call__")


@dataclass(frozen=True, eq=False)
class IndexedCall:
    """A call in a file.

    Attributes:
        node: The call.
        scopes: The module and the functions that contain the call, outermost first.
        targets: The names that are assigned an expression which contains the call.
        argument_offset: For a call such as `map(attend, queries)`, where `map` calls `attend`: the index of the first
            argument for `attend`. None for a direct call.
    """

    node: ast.Call
    scopes: tuple[ast.AST, ...]
    targets: frozenset[str]
    argument_offset: int | None = None


class CallIndex:
    """The calls of a file, and the names that hold its functions and modules. Use `call_index` to create it.

    Attributes:
        calls: The calls, by the last part of the called name.
        holders: For each name, the names that may hold the same object. `f()` means the result of `f`.
        next_layers: For each class, the classes of the layers that follow it in a Sequential.
        method_classes: The name of the class of each method.
        functions_by_name: The functions and methods of the file.
        forwards: The method `forward` of each class.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.calls: defaultdict[str, list[IndexedCall]] = defaultdict(list)
        self.holders: defaultdict[str, set[str]] = defaultdict(set)
        self.next_layers: defaultdict[str, set[str]] = defaultdict(set)
        self.method_classes: dict[ast.AST, str] = {}
        self.functions_by_name: defaultdict[str, list[Function]] = defaultdict(list)
        self.forwards: dict[str, Function] = {}
        self._bases: dict[str, list[str]] = {}  # of each class of the file
        self._parameters: dict[str, list[str]] = {}  # of each function, and of the constructor of each class
        self._starred_parameters: dict[str, str] = {}  # the names of their `*args` parameters
        self._class_names: set[str] = set()
        nodes = node_index(tree)
        for defined in nodes.of(ast.ClassDef):
            self._record_class(defined)
        for statement in nodes.of(ast.ImportFrom):
            self._record_import(statement)
        for attribute in nodes.of(ast.Attribute):
            if attribute.attr[:1].isupper() and isinstance(attribute.value, ast.Name):
                self._class_names.add(attribute.attr)  # model.Attention
        for function in nodes.functions():
            self.functions_by_name[function.name].append(function)
        for name, functions in self.functions_by_name.items():
            self._record_parameters(name, functions[0], skip=functions[0] in self.method_classes)
        for node in list(self.method_classes):
            if getattr(node, "name", "") == "__init__":
                self._record_parameters(self.method_classes[node], node, skip=True)  # type: ignore[arg-type]
        self._read(tree)

    def is_class(self, name: str) -> bool:
        """Whether `name` is a class: one of this file, or an imported name that starts with a capital letter."""
        return name in self._class_names

    def aliases_of(self, first: Iterable[str]) -> Iterator[str]:
        """Yield the names in `first`, and all names that may hold the same objects."""
        todo, seen = list(first), set[str]()
        while todo:
            name = todo.pop(0)
            if name not in seen:
                seen.add(name)
                yield name
                todo += sorted(self.holders[name])

    def calls_of(self, name: str) -> Iterator[IndexedCall]:
        """Yield the calls of the object that `name` holds.

        For a class, these are the calls of its instances, such as `Attention(dim)(x)`, but not `Attention(dim)`.
        """
        for call in self.calls[name]:
            if call.argument_offset is not None or not self.is_class(name) or _last_name(call.node.func) != name:
                yield call

    def constructor_calls(self, name: str) -> Iterator[IndexedCall]:
        """Return the calls that create an instance of the class `name`."""
        return (c for c in self.calls[name] if c.argument_offset is None and _last_name(c.node.func) == name)

    def _record_class(self, node: ast.ClassDef) -> None:
        self._class_names.add(node.name)
        self._parameters.setdefault(node.name, [])
        for method in node.body:
            if isinstance(method, _FUNCTIONS):
                self.method_classes[method] = node.name
                if method.name == "forward":
                    self.forwards[node.name] = method
        self._bases[node.name] = [name for base in node.bases if (name := _last_name(base))]
        for name in self._bases[node.name]:
            self.holders[name].add(node.name)

    def _record_parameters(self, name: str, function: Function, skip: bool) -> None:
        arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        self._parameters[name] = arguments[1:] if skip else arguments
        if function.args.vararg is not None:
            self._starred_parameters[name] = function.args.vararg.arg

    def _record_import(self, node: ast.ImportFrom) -> None:
        """Record imported classes and their aliases, such as `from model import Attention as Base`."""
        for a in node.names:
            name = a.asname or a.name
            if a.name[:1].isupper():
                self._class_names.add(name)
            if name != a.name:
                self.holders[a.name].add(name)

    def _read(self, tree: ast.Module) -> None:
        """Record the assignments, loops, returns and calls of the file."""
        todo: list[tuple[ast.AST, tuple[ast.AST, ...], frozenset[str]]] = [(tree, (), frozenset())]
        while todo:
            node, scopes, targets = todo.pop()
            if node.__class__ not in _HANDLED_NODES:
                todo += [(child, scopes, targets) for child in parts(node)]
                continue
            if isinstance(node, (*_FUNCTIONS, ast.Module)):
                scopes, targets = (*scopes, node), frozenset()
                if isinstance(node, _FUNCTIONS):
                    self._record_decorators(node)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                assigned: list[ast.expr] = [*getattr(node, "targets", ())] or [node.target]  # type: ignore[union-attr]
                targets |= {n.id for t in assigned for n in walk(t) if isinstance(n, ast.Name)}
                for target, value in (p for t in assigned for p in _target_pairs(t, node.value)):
                    self._record_holders(value, [target])
            elif isinstance(node, (ast.For, ast.comprehension)):
                self._record_holders(node.iter, [node.target])
            elif isinstance(node, ast.Return) and scopes and node.value is not None:
                self._record_holders(node.value, [ast.Name(f"{getattr(scopes[-1], 'name', '')}()")])
            elif isinstance(node, ast.Call):
                self._record_call(node, scopes, targets)
            todo += [(child, scopes, targets) for child in parts(node)]

    def _record_decorators(self, function: Function) -> None:
        """Record that the first parameter of each decorator holds the function."""
        holders = self.holders[decorated_name(function)]
        for decorator in function.decorator_list:
            holders |= {*self._parameters.get(called_name(decorator), ())[:1]}
            if isinstance(decorator, ast.Call):  # the decorator is a nested function that the called function returns
                for outer in self.functions_by_name.get(called_name(decorator), ()):
                    inner = [s for s in outer.body if isinstance(s, _FUNCTIONS)]
                    holders |= {a.arg for s in inner for a in s.args.args[:1]}

    def _record_call(self, call: ast.Call, scopes: tuple[ast.AST, ...], targets: frozenset[str]) -> None:
        """Record a call under the called name. `attn(dim)(x)` is also recorded under the other names in `attn(dim)`."""
        name = called_name(call.func)
        indexed = IndexedCall(call, scopes, targets)
        others = set(self._names_held(call.func)) - {name} if not isinstance(call.func, ast.Name) else set()
        owner = name
        if name in FORWARD and isinstance(call.func, ast.Attribute) and (owner := called_name(call.func.value)):
            self.calls[owner].append(indexed)  # model.forward(x)
        for class_name in self._classes_of(owner, scopes):
            self.calls[class_name].append(indexed)  # self(x), super().forward(x)
        for called in (name, *sorted(others if _has_call(call.func) else ())):
            self.calls[called].append(indexed)
        self._record_passed_arguments(call, name)
        if name not in _CALL_THEIR_ARGUMENT or name in self._parameters:
            return
        for i, argument in enumerate(call.args):
            for held_name in (
                self._names_held(argument) if isinstance(argument, (ast.Name, ast.Attribute, ast.Call)) else ()
            ):
                self.calls[held_name].append(IndexedCall(call, scopes, targets, i + 1))

    def _classes_of(self, owner: str, scopes: tuple[ast.AST, ...]) -> Iterator[str]:
        """Yield the classes whose instance `owner` is, if that is the first parameter of a method, or `super`."""
        method = next((s for s in scopes if s in self.method_classes), None)
        if not isinstance(method, _FUNCTIONS) or owner == "":
            return
        defined = self.method_classes[method]
        parameters = [*method.args.posonlyargs, *method.args.args]
        if owner == "super":
            yield from self._bases[defined]
        elif parameters and owner == parameters[0].arg:
            todo, seen = [defined], set[str]()  # a subclass inherits the method
            while todo:
                if (name := todo.pop()) not in seen:
                    seen.add(name)
                    yield name
                    todo += (c for c, bases in self._bases.items() if name in bases)

    def _record_holders(self, value: ast.expr | None, targets: list[ast.expr]) -> None:
        """Record that the names in `targets` may hold the objects in `value`."""
        names = {name for t in targets for n in walk(t) if (name := _last_name(n))} - {"self"}
        for name in self._names_held(value):
            self.holders[name] |= names - {name}

    def _record_passed_arguments(self, call: ast.Call, name: str) -> None:
        """Record which names hold the arguments of a call: parameters, lists that are appended to, and wrappers."""
        if name == "Sequential":
            layers = [called_name(a.func) if isinstance(a, ast.Call) else "" for a in call.args]
            for first, second in pairwise(layers):
                self.next_layers[first].add(second)
        if name in _STORE_THEIR_ARGUMENT and isinstance(call.func, ast.Attribute):
            names = [ast.Name(a.value) for a in call.args if _is_string(a)]
            for argument in call.args:
                self._record_holders(argument, [call.func.value, *names])
        if name == "partial" and call.args:  # partial(apply, attend) passes `attend` to `apply`
            name, arguments = _last_name(call.args[0]), call.args[1:]
        else:
            arguments = call.args
        if name not in self._parameters:
            return
        instance = {name} if self.is_class(name) else set()  # an instance may store the arguments of its constructor
        parameters = dict(enumerate(self._parameters[name]))
        for i, argument in enumerate(arguments):
            for held_name in self._names_held(argument):
                self.holders[held_name] |= (
                    {parameters.get(i, self._starred_parameters.get(name, name))} | instance
                ) - {held_name}
        for k in call.keywords:
            for held_name in self._names_held(k.value):
                self.holders[held_name] |= ({k.arg or name} | instance) - {held_name}

    def _names_held(self, value: ast.AST | None) -> Iterator[str]:
        """Yield the names of the functions and modules that an expression may hold.

        The called name itself is left out, unless it is a class: the result of a function is data.
        """
        todo: list[ast.AST] = [value] if value is not None else []
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Call) and _last_name(node.func) in _TAKE_NUMBERS:
                continue
            if isinstance(node, ast.Call):
                todo += [*node.args, *node.keywords, *self._result_expressions(node)]
                if (name := _last_name(node.func)) in self.functions_by_name:
                    yield f"{name}()"
            elif isinstance(node, ast.Lambda):
                todo += [
                    n.func
                    for n in walk(node.body)
                    if isinstance(n, ast.Call) and _last_name(n.func) in self.functions_by_name
                ]
            elif name := _last_name(node):
                yield name
            else:
                todo += children(node)

    def _result_expressions(self, call: ast.Call) -> Iterator[ast.AST]:
        """Yield expressions for the result of a call: an instance of a class, the module of `module.eval()`, and an
        attribute that `getattr` looks up.
        """
        function = call.func
        if self.is_class(_last_name(function)) or not _last_name(function):
            yield function
        elif isinstance(function, ast.Attribute) and function.attr in _RETURN_THEIR_MODULE:
            yield function.value
        elif _last_name(function) == "getattr":
            yield from (ast.Name(a.value) for a in call.args if _is_string(a))


def call_index(tree: ast.Module) -> CallIndex:
    """Return the index of a file. It is created once."""
    index: CallIndex = cached_with_tree(tree, "_calls", CallIndex)
    return index


def may_be_call_of(name: str, call: ast.Call) -> bool:
    """Whether an index may list `call` as a call of the function `name`: a fast test without an index."""
    function = call.func
    while isinstance(function, ast.Attribute):
        function = function.value
    last = _last_name(call.func)
    return not isinstance(function, ast.Name) or last == name or last in FORWARD or last in _CALL_THEIR_ARGUMENT


def _target_pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each target of an assignment with its value. `a, b = A(), B()` has two pairs."""
    if value is not None:
        yield from target_pairs(target, value)


def _is_string(node: ast.AST | None) -> TypeGuard[_StringConstant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _has_call(node: ast.AST) -> bool:
    return any(isinstance(n, (ast.Call, ast.Subscript)) for n in walk(node))


def decorated_name(function: Function) -> str:
    """Return a unique name for a function before its decorators are applied."""
    return f"@{function.name} {function.lineno}"


def called_name(function: ast.AST) -> str:
    """Return the last part of the called name.

    The result is `attn` for `self.attn(x)`, `self.layers[0].attn(x)` and `attn(dim)(x)`. It is `blocks` for
    `self.blocks[0](x)`.
    """
    while isinstance(function, (ast.Call, ast.Subscript)):
        function = function.func if isinstance(function, ast.Call) else function.value
    return _last_name(function)
