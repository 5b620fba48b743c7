"""The class of the object that has its attribute changed by a file.

In `model.attn.drop = f`, the receiver is `model.attn`. Its class follows from an assignment, an annotation or an
isinstance test. If the text shows none of them, the receiver may be an instance of any class. This file looks at syntax
and the scope of one file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.scope import FileScope, self_name
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.changes import CodeChange, file_searches_modules
from autofuse.source.evidence.tested_classes import class_name, tested_class_names

# Usual names for settings. They are no modules, so an assignment to config.dropout replaces no child.
_SETTINGS = re.compile(r"(.*_)?(config|conf|cfg|args|arguments|hparams|opts?|options|settings|namespace|ctx|kwargs)$")
_SAME_OBJECT = frozenset("to cuda cpu eval train half float double bfloat16 requires_grad_ apply".split())
_ANYTHING = ("torch.nn.Module", "torch.nn.modules.Module", "typing.Any", "object")
SETTINGS = "<settings>"
_PYTHON_MODULE = "<python module>"


def receiver_classes(scope: FileScope, change: CodeChange) -> frozenset[str] | None:
    """Return the class names that the receiver of a change may have; None if it may be any class.

    Imported classes have their full name.
    """
    if change.receiver is None:
        return None
    tested = _tested_classes(scope, change)
    return (
        tested if tested is not None else _expression_classes(scope, change.receiver, change.function, change.owner, 0)
    )


def is_own_instance(change: CodeChange) -> bool:
    """Whether a method changes an attribute of its own instance or class."""
    self_parameter = self_name(change.function) if change.function is not None and change.owner is not None else None
    receiver = change.receiver
    if isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name) and receiver.func.id == "type":
        receiver = receiver.args[0] if receiver.args else None
    if isinstance(receiver, ast.Attribute) and receiver.attr == "__class__":
        receiver = receiver.value
    return self_parameter is not None and isinstance(receiver, ast.Name) and receiver.id == self_parameter


def changes_given_object(change: CodeChange, scope: FileScope) -> bool:
    """Whether a function changes an object that its callers pass to it, of a class of torch or of an unknown one.

    Such a function may change a module of another file that its file does not import: `replace(model, old, new)`.
    """
    if change.kind == "assigned" and change.name is None:
        return scope.index(file_searches_modules) or is_module_call(change.value)
    if change.receiver is None or change.function is None or is_own_instance(change):
        return False
    classes = receiver_classes(scope, change)
    if classes is None and change.kind == "hooked":
        return _is_loop_variable(change.receiver, change.function)  # not a module that the caller chooses by its name
    return classes is None or any(c.startswith("torch.") for c in classes)


def is_module_call(value: ast.expr | None) -> bool:
    """Whether a value looks like a new module: a call of a class."""
    function = value.func if isinstance(value, ast.Call) else None
    return getattr(function, "attr", getattr(function, "id", ""))[:1].isupper()


def _is_loop_variable(receiver: ast.expr, function: Function) -> bool:
    """Whether a loop of the function binds the receiver: `for m in model.modules()`."""
    loops = (n for n in walk(function) if isinstance(n, (ast.For, ast.comprehension)))
    return isinstance(receiver, ast.Name) and any(receiver.id in _bound_names(n.target) for n in loops)


def _tested_classes(scope: FileScope, change: CodeChange) -> frozenset[str] | None:
    """The classes that an enclosing `if isinstance(m, nn.Softmax)` allows; None if no test gives them."""
    classes = frozenset[str]()
    text = ast.unparse(change.receiver) if change.receiver is not None else ""
    for test in change.conditions:
        for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else (test,):
            match part:
                case ast.Call(func=ast.Name(id="isinstance"), args=[tested, kinds]) if ast.unparse(tested) == text:
                    allowed = tested_class_names(scope, kinds, change.function)
                    if allowed is not None and allowed.isdisjoint(_ANYTHING):
                        classes |= allowed
    return classes or None


def _expression_classes(
    scope: FileScope, node: ast.expr, function: Function | None, owner: ast.ClassDef | None, depth: int
) -> frozenset[str] | None:
    if depth > 4:
        return None
    match node:
        case ast.Name(id=name):
            return _name_classes(scope, name, function, owner, depth)
        case ast.Attribute(attr=name) if _SETTINGS.match(name):
            return frozenset({SETTINGS})
        case ast.Attribute(value=ast.Name(id=receiver), attr=name) if owner is not None and function is not None:
            if receiver == self_name(function):
                return _classes_of_all(scope, _attribute_values(scope, owner, name), function, owner, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _SAME_OBJECT:
            return _expression_classes(scope, inner, function, owner, depth + 1)
        case ast.Call(func=ast.Attribute(attr="parse_args" | "parse_known_args")):
            return frozenset({SETTINGS})
        case ast.Subscript(value=ast.Attribute(value=ast.Name("sys"), attr="modules")):
            return frozenset({_PYTHON_MODULE})
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module")):
            return frozenset({_PYTHON_MODULE})
        case ast.Call(func=callee):
            kind = class_name(scope, callee)
            return frozenset({kind}) if kind and kind.rpartition(".")[2][:1].isupper() else None
    return None


def _name_classes(
    scope: FileScope, name: str, function: Function | None, owner: ast.ClassDef | None, depth: int
) -> frozenset[str] | None:
    if name in scope.classes:
        return frozenset({name})  # the code assigns to the class itself
    if _SETTINGS.match(name):
        return frozenset({SETTINGS})
    if function is not None and owner is not None and name in (self_name(function), "cls"):
        return frozenset({owner.name})
    if (annotation := _annotation(function, name)) is not None:
        return _annotated_class(scope, annotation)
    return _classes_of_all(scope, list(_assigned_values(scope, name, function)), function, owner, depth)


def _classes_of_all(
    scope: FileScope, values: list[ast.expr | None], function: Function | None, owner: ast.ClassDef | None, depth: int
) -> frozenset[str] | None:
    """The classes of a name that is assigned each of `values`; None unless all of them are known."""
    classes = [
        None if value is None else _expression_classes(scope, value, function, owner, depth + 1) for value in values
    ]
    return frozenset[str]().union(*(names or () for names in classes)) if classes and None not in classes else None


def _attribute_values(scope: FileScope, owner: ast.ClassDef, name: str) -> list[ast.expr | None]:
    class_scope = scope.class_scope(owner)
    return [] if class_scope.opaque else [*class_scope.attributes.get(name, ())]


def _assigned_values(scope: FileScope, name: str, function: Function | None) -> Iterator[ast.expr | None]:
    """The values that a name is assigned in the function, or else in the file; None for an unknown value."""
    assignments = scope.index(_Assignments)
    local_values = assignments.of(function).get(name, ()) if function is not None else ()
    if local_values:
        yield from local_values
    elif function is None or name not in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}:
        yield from assignments.of(scope.tree).get(name, ())


class _Assignments:
    """The values that each function of a file, and the file itself, assigns to each name.

    A value is None if no expression gives it: a loop variable, an unpacked tuple.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[ast.AST, dict[str, list[ast.expr | None]]] = {}

    def of(self, node: ast.AST) -> dict[str, list[ast.expr | None]]:
        """The values that are assigned inside `node`, by name."""
        if node not in self._known:
            self._known[node] = {}
            for target, value in _find_assignments(node):
                plain = isinstance(target, ast.Name)
                for name in _bound_names(target):
                    self._known[node].setdefault(name, []).append(value if plain else None)
        return self._known[node]


def _find_assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    for n in walk(node):
        if isinstance(n, ast.Assign):
            yield from ((target, n.value) for target in n.targets)
        elif isinstance(n, (ast.For, ast.comprehension)):
            yield n.target, None
        elif isinstance(n, ast.withitem) and n.optional_vars is not None:
            yield n.optional_vars, None


def _bound_names(target: ast.expr) -> set[str]:
    return {t.id for t in walk(target) if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store)}


def _annotation(function: Function | None, name: str) -> ast.expr | None:
    arguments = function.args if function is not None else None
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if arguments is not None else ()
    return next((a.annotation for a in every if a.arg == name), None)


def _annotated_class(scope: FileScope, annotation: ast.expr) -> frozenset[str] | None:
    """The class of an annotation; None if the annotation names no class or several."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return None
    name = class_name(scope, annotation)
    return frozenset({name}) if name and name not in _ANYTHING and name[:1] != "_" else None
