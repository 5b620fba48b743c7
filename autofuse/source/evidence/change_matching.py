"""May a change in a file affect a name that a function reads?

There are no types, so `x.drop = f` may change the attribute of any class. The change counts, unless the text shows one
of these:

- The attribute belongs to another class.
- The assigned value cannot replace the value that was read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.scope import DefinedFunction, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.changes import CodeChange, searches_modules
from autofuse.source.evidence.module_names import is_looked_up_by_modules
from autofuse.source.evidence.names_read import NamesRead, NameUse
from autofuse.source.evidence.receivers import is_own_instance, receiver_classes
from autofuse.source.evidence.tested_classes import tested_class_names

_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
FUNCTION_ATTRIBUTES = ("__code__", "__defaults__", "__kwdefaults__")  # what runs, of a function that stays
_PARAMETERS = ("Parameter", "Buffer")


def may_change_name(change: CodeChange, scope: FileScope, use: NameUse, family: frozenset[str]) -> bool:
    """Whether `change`, made by the file of `scope`, may change the name of `use`.

    Args:
        change: the change.
        scope: the scope of the file that makes the change.
        use: a name that the edited function reads.
        family: the names of the classes that may have the name in their instances.
    """
    if change.name in FUNCTION_ATTRIBUTES and change.kind == "assigned":
        function = change.receiver
        return use.name == (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None))
    if change.name is None and change.kind == "hooked" or change.name not in (use.name, None):
        return False
    if use.owner is None:
        return _may_change_file_name(change, scope, use)
    value = use.scope.attribute(use.owner, use.name)
    if change.kind == "element" and _last_name(value) not in _CONTAINERS:
        return False
    if _cannot_affect(change, value):
        return False
    if is_own_instance(change):
        return change.owner is not None and change.owner.name in family and _is_unknown_to_class(change, scope)
    # A computed name may be any name, so such a change counts only if the tests around it allow this child.
    if change.name is None and (_is_decorator_attribute(change) or not _may_be_replaced_child(change, scope, use)):
        return False
    classes = receiver_classes(scope, change)
    return classes is None or any(_is_in_family(c, family) for c in classes)


def _is_in_family(name: str, family: frozenset[str]) -> bool:
    """Whether the class `name` is in `family`; imported classes have their module as a prefix."""
    return name in family or "." in name and f".{name.rpartition('.')[2]}" in family


def find_hooked_children(
    change: CodeChange, scope: FileScope, defined: DefinedFunction, names_read: NamesRead
) -> Iterator[str]:
    """Yield the children of the class that may get a hook, when the text does not name the module that gets it."""
    if is_own_instance(change):
        return
    kinds = receiver_classes(scope, change) if change.receiver is not None else None
    for r in names_read.names:
        value = defined.scope.attribute(defined.owner, r.name) if r.owner is defined.owner and not r.inner else None
        if (
            value is not None
            and is_module_expression(value)
            and (kinds is None or may_be_instance_of(value, defined.scope, kinds))
        ):
            yield r.name


def _may_change_file_name(change: CodeChange, scope: FileScope, use: NameUse) -> bool:
    """Whether a change assigns a name of a file through its module: `model.helper = f`."""
    if change.kind != "assigned":
        return False
    stem = use.scope.file.stem if use.scope.file is not None else ""
    if change.name is None:  # setattr(model, name, f)
        receiver = change.receiver
        meaning = scope.name_of(receiver) if isinstance(receiver, (ast.Name, ast.Attribute)) else None
        return bool(stem) and (meaning or "").rpartition(".")[2] == stem
    if change.receiver is None:
        return change.path.rpartition(".")[0].rpartition(".")[2] in (stem, "__main__", "__name__")
    match change.receiver:
        case ast.Call(func=ast.Name(id="globals")):
            return scope.tree is use.scope.tree
        case ast.Attribute(attr="__globals__"):
            return True
        case ast.Subscript(value=ast.Attribute(attr="modules")) | ast.Call():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            meaning = scope.name_of(change.receiver) or ""
            return meaning.rpartition(".")[2] == stem or name == stem or name in scope.imports
    return False


def _is_unknown_to_class(change: CodeChange, scope: FileScope) -> bool:
    """Whether the scope of the class lacks a change that the instance makes to itself: the capture did not read it."""
    if change.kind != "assigned" or not isinstance(change.receiver, ast.Name) or change.owner is None:
        return True
    if isinstance(change.node, ast.Call) and _last_name(change.node) == "update":
        return True
    class_scope = scope.class_scope(change.owner)
    return not class_scope.opaque and change.name not in {*class_scope.attributes, *class_scope.buffers}


def _cannot_affect(change: CodeChange, value: ast.expr | None) -> bool:
    """Whether the assignment cannot affect the code that was read.

    - A child module cannot be replaced by a number.
    - A tied parameter has the shape of the parameter that it replaces.
    """
    if value is None or change.kind != "assigned" or change.value is None:
        return False
    if _last_name(value) in _PARAMETERS:
        return isinstance(change.value, ast.Attribute)
    return is_module_expression(value) and _is_plain_value(change.value)


def _is_plain_value(value: ast.expr) -> bool:
    """Whether a value is certainly a number, a string or a container, and so no module."""
    match value:
        case ast.Constant(value=constant):
            return constant is not None
        case ast.UnaryOp(operand=operand):
            return _is_plain_value(operand)
        case ast.JoinedStr() | ast.Compare() | ast.Dict() | ast.List() | ast.Tuple() | ast.Set():
            return True
        case ast.Call(func=ast.Name(id="int" | "float" | "len" | "str" | "bool" | "round" | "max" | "min")):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_plain_value(left) or _is_plain_value(right)
    return False


def _is_decorator_attribute(change: CodeChange) -> bool:
    """Whether the change assigns to `self` in a decorator, under a name that the decorator takes as an argument."""
    return isinstance(change.receiver, ast.Name) and change.receiver.id == "self"


def _may_be_replaced_child(change: CodeChange, scope: FileScope, use: NameUse) -> bool:
    """Whether a change with a computed name may replace this child: the surrounding tests may exclude its class."""
    value = use.scope.attribute(use.owner, use.name)
    if value is None:  # a loop over modules replaces no method
        return use.scope.method(use.owner, use.name) is not None and not searches_modules(change.function)
    if searches_modules(change.function) and (_is_number_attribute(value, use) or _last_name(value) in _PARAMETERS):
        return False  # a number is no module, so a loop over modules does not replace it
    for test in change.conditions:
        for n in walk(test):
            match n:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                    classes = tested_class_names(scope, kinds, change.function)
                    if classes is not None and not may_be_instance_of(value, use.scope, classes):
                        return False
                case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=str(name))]):
                    if _is_torch_module(value, use.scope) and not is_looked_up_by_modules(name):
                        return False  # no module of torch has this attribute
    return True


def _is_torch_module(expression: ast.expr, scope: FileScope) -> bool:
    """Whether every module that an expression creates is of torch, and none is a class of the project."""
    calls = [n for n in walk(expression) if isinstance(n, ast.Call)]
    return bool(calls) and all(_full_name(n.func, scope) in MODULES for n in calls)


def _is_number_attribute(value: ast.expr, use: NameUse) -> bool:
    """Whether an attribute is a number or a string, judged by its value or by the constructor's argument."""
    if _is_plain_value(value):
        return True
    init = use.scope.method(use.owner, "__init__")
    if not isinstance(value, ast.Name) or init is None:
        return False
    arguments = [*init.args.posonlyargs, *init.args.args]
    defaults = dict(zip([a.arg for a in arguments][::-1], init.args.defaults[::-1], strict=False))
    defaults |= {
        a.arg: default
        for a, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
        if default is not None
    }
    annotation = next((a.annotation for a in (*arguments, *init.args.kwonlyargs) if a.arg == value.id), None)
    if isinstance(annotation, ast.Name):
        return annotation.id in ("int", "float", "bool", "str")
    return value.id in defaults and _is_plain_value(defaults[value.id])


def may_be_instance_of(expression: ast.expr, scope: FileScope, kinds: frozenset[str]) -> bool:
    """Whether a module that the expression creates may be an instance of one of `kinds`; True if this is unknown."""
    calls = [n for n in walk(expression) if isinstance(n, ast.Call)]
    names = {_full_name(n.func, scope) for n in calls}
    unknown = not calls or any(n.startswith("torch.nn.") and n not in MODULES for n in names)
    last = {k.rpartition(".")[2] for k in kinds}
    return unknown or "Module" in last or any(n.rpartition(".")[2] in last for n in names)


def is_module_expression(expression: ast.expr) -> bool:
    """Whether the value that a class assigns is a module: a call of a class, or a conditional of such calls."""
    if isinstance(expression, ast.IfExp):
        return is_module_expression(expression.body) or is_module_expression(expression.orelse)
    last = _last_name(expression)
    return last[:1].isupper() and last not in _PARAMETERS and not last.endswith("Tensor")


def _last_name(expression: ast.expr | None) -> str:
    function = expression.func if isinstance(expression, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _full_name(node: ast.expr, scope: FileScope) -> str:
    return scope.name_of(node) or ast.unparse(node)
