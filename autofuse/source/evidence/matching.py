"""Whether a change that a file makes may be one of what a function reads.

Without types, `x.drop = f` may be any class's attribute: it counts unless the text says that it is another class's, or
that what is assigned could not take the place of what was read. Knows changes and scopes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.ir.vocabulary import MODULES
from autofuse.source.capture.scope import Defined, FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.changes import CodeChange, looks_for_modules
from autofuse.source.evidence.names_read import NamesRead, NameUse
from autofuse.source.evidence.receivers import classes_of, is_self
from autofuse.source.evidence.tested_kinds import kinds_of

_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")  # what runs, of a function that stays
_PARAMETERS = ("Parameter", "Buffer")


def concerns(change: CodeChange, scope: FileScope, read: NameUse, family: frozenset[str]) -> bool:
    """Whether `change`, which the file of `scope` makes, may be one of `read`."""
    if change.name in OF_FUNCTIONS and change.kind == "assigned":
        named = change.receiver
        return read.name == (named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", None))
    if change.name is None and change.kind == "hooked" or change.name not in (read.name, None):
        return False
    if read.owner is None:
        return _of_file(change, scope, read)
    made = read.scope.attribute(read.owner, read.name)
    if change.kind == "element" and _last_name(made) not in _CONTAINERS:
        return False
    if _keeps(change, made):
        return False
    if is_self(change):
        return change.owner is not None and change.owner.name in family and _unseen(change, scope)
    if change.name is None and (_is_somebodys_self(change) or not _may_be_renewed(change, scope, read)):
        return False
    classes = classes_of(scope, change)
    return classes is None or any(_in_family(c, family) for c in classes)


def _in_family(name: str, family: frozenset[str]) -> bool:
    """Whether a class, with its module in front where it is imported, is one of `family`."""
    return name in family or "." in name and f".{name.rpartition('.')[2]}" in family


def whole_modules(change: CodeChange, scope: FileScope, d: Defined, read: NamesRead) -> Iterator[str]:
    """The children of `d`'s class that may get a hook which is given to a module that no name says."""
    if is_self(change):
        return
    kinds = classes_of(scope, change) if change.receiver is not None else None
    for r in read.names:
        made = d.scope.attribute(d.owner, r.name) if r.owner is d.owner and not r.inner else None
        if made is not None and is_module(made) and (kinds is None or is_of(made, d.scope, kinds)):
            yield r.name


def _of_file(change: CodeChange, scope: FileScope, read: NameUse) -> bool:
    """Whether a name of a file is assigned by way of its module."""
    if change.kind != "assigned" or change.name is None:
        return False
    stem = read.scope.file.stem if read.scope.file is not None else ""
    if change.receiver is None:
        return change.path.rpartition(".")[0].rpartition(".")[2] in (stem, "__main__", "__name__")
    match change.receiver:
        case ast.Call(func=ast.Name(id="globals")):
            return scope.tree is read.scope.tree
        case ast.Subscript(value=ast.Attribute(attr="modules")) | ast.Call():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            meaning = scope.name_of(change.receiver) or ""
            return meaning.rpartition(".")[2] == stem or name == stem or name in scope.imports
    return False


def _unseen(change: CodeChange, scope: FileScope) -> bool:
    """Whether a change of the instance's own is none of those that the scope of its class tells of."""
    if change.kind != "assigned" or not isinstance(change.receiver, ast.Name) or change.owner is None:
        return True
    if isinstance(change.node, ast.Call) and _last_name(change.node) == "update":
        return True
    known = scope.class_scope(change.owner)
    return not known.opaque and change.name not in {*known.attributes, *known.buffers}


def _keeps(change: CodeChange, made: ast.expr | None) -> bool:
    """Whether the assignment could not take the place of what the class makes, or changes nothing that is read.

    A module takes no number in place of a child. Two parameters that are tied have one shape.
    """
    if made is None or change.kind != "assigned" or change.value is None:
        return False
    if _last_name(made) in _PARAMETERS:
        return isinstance(change.value, ast.Attribute)
    return is_module(made) and _is_plain(change.value)


def _is_plain(value: ast.expr) -> bool:
    """Whether a value is a number or a text for sure."""
    match value:
        case ast.Constant(value=constant):
            return constant is not None
        case ast.UnaryOp(operand=operand):
            return _is_plain(operand)
        case ast.JoinedStr() | ast.Compare() | ast.Dict() | ast.List() | ast.Tuple() | ast.Set():
            return True
        case ast.Call(func=ast.Name(id="int" | "float" | "len" | "str" | "bool" | "round" | "max" | "min")):
            return True
        case ast.BinOp(left=left, right=right):
            return _is_plain(left) or _is_plain(right)
    return False


def _is_somebodys_self(change: CodeChange) -> bool:
    """Whether a function that decorates methods keeps something in the instance, under a name that it is given."""
    return isinstance(change.receiver, ast.Name) and change.receiver.id == "self"


def _may_be_renewed(change: CodeChange, scope: FileScope, read: NameUse) -> bool:
    """Whether a name that is computed may be this one: the tests around may say which kind of child is replaced."""
    made = read.scope.attribute(read.owner, read.name)
    if made is None:
        return read.scope.method(read.owner, read.name) is not None
    if looks_for_modules(change.function) and _is_number(made, read):
        return False  # it is no module, so none takes its place
    for test in change.around:
        for n in walk(test):
            match n:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                    named = kinds_of(scope, kinds, change.function)
                    if named is not None and not is_of(made, read.scope, named):
                        return False
    return True


def _is_number(made: ast.expr, read: NameUse) -> bool:
    """Whether an attribute is a number or a text by what it is assigned, or by how the constructor takes it."""
    if _is_plain(made):
        return True
    init = read.scope.method(read.owner, "__init__")
    if not isinstance(made, ast.Name) or init is None:
        return False
    given = [*init.args.posonlyargs, *init.args.args]
    defaults = dict(zip([a.arg for a in given][::-1], init.args.defaults[::-1], strict=False))
    defaults |= {a.arg: d for a, d in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True) if d is not None}
    annotated = next((a.annotation for a in (*given, *init.args.kwonlyargs) if a.arg == made.id), None)
    if isinstance(annotated, ast.Name):
        return annotated.id in ("int", "float", "bool", "str")
    return made.id in defaults and _is_plain(defaults[made.id])


def is_of(made: ast.expr, scope: FileScope, kinds: frozenset[str]) -> bool:
    """Whether one of the modules that an expression makes is one of `kinds`, or that is not known."""
    calls = [n for n in walk(made) if isinstance(n, ast.Call)]
    names = {_full_name(n.func, scope) for n in calls}
    unknown = not calls or any(n.startswith("torch.nn.") and n not in MODULES for n in names)
    last = {k.rpartition(".")[2] for k in kinds}
    return unknown or "Module" in last or any(n.rpartition(".")[2] in last for n in names)


def is_module(made: ast.expr) -> bool:
    """Whether what a class assigns is a module: a call of a class, or one of two."""
    if isinstance(made, ast.IfExp):
        return is_module(made.body) or is_module(made.orelse)
    last = _last_name(made)
    return last[:1].isupper() and last not in _PARAMETERS and not last.endswith("Tensor")


def _last_name(made: ast.expr | None) -> str:
    function = made.func if isinstance(made, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _full_name(node: ast.expr, scope: FileScope) -> str:
    return scope.name_of(node) or ast.unparse(node)
