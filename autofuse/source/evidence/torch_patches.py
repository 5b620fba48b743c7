"""Functions and classes of torch that the given files replace: `F.softmax = mine`, `nn.Softmax.forward = mine`.

A replacement affects the whole program. It may affect the code that was read and the code that the edit calls. This
file looks at changes and at the names that a function reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from autofuse.reasons import code_that_runs
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import call_index, may_be_call_of
from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.changes import CodeChange, find_changes
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.module_names import is_looked_up_by_modules
from autofuse.source.evidence.names_read import NamesRead
from autofuse.source.evidence.passed_modules import passed_changes

_MAX_TEXT = 60  # characters of the code that a message quotes
_EVERY_MODULE = ("torch.nn.Module.", "torch.nn.modules.Module.", "torch.nn.modules.module.Module.")


def find_patched_children(claim: Claim, names_read: NamesRead) -> Fails | dict[str, CodeChange]:
    """Return the children that belong to a replaced torch class, each with the change.

    Returns Fails if a function is replaced that the code reads or the edit would call.
    """
    changed_children = dict[str, CodeChange]()
    scope = claim.defined.scope
    for other in (scope, *_patching_files(claim)):
        for change, name in other.cached_for_scope(_replacements):
            if name.endswith("*") and other is not scope:
                continue  # the computed name may be another one: find_possible_patches reports it as an assumption
            if _is_read(name, claim, names_read):
                where = f"in {other.file} " if other is not scope else ""
                text = ast.unparse(change.node).splitlines()[0]
                how = f"{where}may replace" if name.endswith("*") else f"{where}replaces"
                why = because(code_that_runs.OTHER_CODE_RUNS, name=_name_for_message(name, claim), how=how)
                return Fails(why, enables=False, text=text, line=change.line)
            changed_children |= dict.fromkeys(sorted(_children_of_class(name, names_read)), change)
    return changed_children


def find_possible_patches(claim: Claim, names_read: NamesRead) -> Iterator[Missing]:
    """Yield an assumption if a file may replace a name of torch that is read.

    Another file may assign to a computed name, and any file may change torch through a value that it passes on.
    """
    own = claim.defined.scope
    for other in (own, *_patching_files(claim)):
        computed = [(change.node, name) for change, name in other.cached_for_scope(_replacements) if name.endswith("*")]
        passed = [
            (c.node, f"{h}.{c.name or '*'}") for c in other.cached_for_scope(passed_changes) for h in sorted(c.held)
        ]
        for node, name in (*(computed if other is not own else ()), *passed):
            if _is_read(name, claim, names_read):
                text, file = ast.unparse(node).splitlines()[0], other.file.name if other.file is not None else ""
                shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
                where = f"in {file}, line {node.lineno}" if other is not own else f"in line {node.lineno}"
                yield Missing(f"assumes that `{shown}` {where} replaces nothing that runs here")
                return


def _patching_files(claim: Claim) -> tuple[FileScope, ...]:
    return claim.files.files_patching_torch(claim.defined.scope, _has_replacements) if claim.files is not None else ()


def _has_replacements(scope: FileScope) -> bool:
    return bool(scope.cached_for_scope(_replacements) or scope.cached_for_scope(passed_changes))


def _replacements(scope: FileScope) -> list[tuple[CodeChange, str]]:
    """Every change of a file that replaces something in torch, with its full name."""
    owners_by_argument = dict[tuple[str, int, str], set[str]]()
    return [
        (change, name)
        for change in scope.index(find_changes)
        for name in _replaced_names(change, scope, owners_by_argument)
    ]


def _replaced_names(
    change: CodeChange, scope: FileScope, owners_by_argument: dict[tuple[str, int, str], set[str]]
) -> list[str]:
    """The full torch names that a change replaces; a name ends in `*` if it is computed."""
    if change.kind != "assigned":
        return []
    if change.receiver is None:
        return [change.path] if change.path.startswith("torch.") else []
    has_imports = change.function is not None and _imports(change.function)
    local_scope = scope.nested_scope(change.function) if has_imports and change.function is not None else scope
    owners = {
        local_scope.name_of(change.receiver)
        or _module_by_name(change.receiver)
        or _class_of_tensor(change.receiver, local_scope),
        _through_module(change.receiver),
    }
    if change.function is not None and isinstance(change.receiver, ast.Name):
        owners |= _owners_passed(change.function, change.receiver.id, scope, owners_by_argument)
    return [f"{o}.{change.name or '*'}" for o in sorted(o for o in owners if o and _names_torch(o))]


def _module_by_name(receiver: ast.expr) -> str:
    """The name in `sys.modules["torch.nn.functional"]` or `importlib.import_module("torch.nn.functional")`."""
    match receiver:
        case ast.Subscript(value=ast.Attribute(attr="modules") | ast.Name("modules"), slice=ast.Constant(str(name))):
            return name
        case ast.Call(func=ast.Name(id=how) | ast.Attribute(attr=how), args=[ast.Constant(str(name)), *_]) if how in (
            "import_module",
            "__import__",
        ):
            return name
    return ""


_USUAL_NAMES = {"torch": "torch", "F": "torch.nn.functional", "nn": "torch.nn"}


def _through_module(receiver: ast.expr) -> str:
    """The values of `model.torch` and `model.F`, if `model` is a module of the project: its own imports of torch."""
    if not isinstance(receiver, ast.Attribute) or not any(
        getattr(n, "attr", "") in _USUAL_NAMES for n in walk(receiver)
    ):
        return ""  # most receivers: their text need not be written
    names = ast.unparse(receiver).split(".")
    at = next((i for i, name in enumerate(names) if i and name in _USUAL_NAMES), 0)
    return ".".join([_USUAL_NAMES[names[at]], *names[at + 1 :]]) if at else ""


def _class_of_tensor(receiver: ast.expr, scope: FileScope) -> str:
    """`torch.Tensor` for `type(torch.ones(1))` and `torch.ones(1).__class__`; "" for anything else."""
    match receiver:
        case (
            ast.Call(func=ast.Name("type"), args=[ast.Call(func=made)])
            | ast.Attribute(value=ast.Call(func=made), attr="__class__")
        ):
            name = scope.name_of(made) or ""
            return "torch.Tensor" if name.startswith("torch.") and name.rpartition(".")[2][:1].islower() else ""
    return ""


def _owners_passed(
    function: Function, name: str, scope: FileScope, known: dict[tuple[str, int, str], set[str]]
) -> set[str]:
    """The torch objects that callers pass as the argument `name`, which the function changes: `patch(torch.Tensor)`.

    Functions of one name share the answer, which `known` keeps, because a call shows only the name.
    """
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if name not in arguments:
        return set()
    key = function.name, arguments.index(name), name
    if key not in known and not _may_be_passed(function.name, key[1], name, scope):
        known[key] = set()
    elif key not in known:
        calls = [called.node for called in scope.index(call_index).calls[function.name]]
        known[key] = {scope.name_of(v) or "" for c in calls for v in _arguments(c, key[1], name)}
    return known[key]


def _may_be_passed(function: str, position: int, keyword: str, scope: FileScope) -> bool:
    """Whether a call that may be one of `function` passes an object of torch: a fast test before calls are indexed."""
    return any(
        may_be_call_of(function, call) and any(_is_of_torch(v, scope) for v in _arguments(call, position, keyword))
        for call in scope.cached_for_scope(_calls_with_torch)
    )


def _calls_with_torch(scope: FileScope) -> list[ast.Call]:
    """The calls of a file with an argument that is an object of torch."""
    calls = node_index(scope.tree).of(ast.Call)
    return [c for c in calls if any(_is_of_torch(v, scope) for v in (*c.args, *(k.value for k in c.keywords)))]


def _is_of_torch(value: ast.expr, scope: FileScope) -> bool:
    return isinstance(value, (ast.Name, ast.Attribute)) and _names_torch(scope.name_of(value) or "")


def _names_torch(name: str) -> bool:
    return name == "torch" or name.startswith("torch.")


def _arguments(call: ast.Call, position: int, keyword: str) -> list[ast.expr]:
    return [*call.args[position : position + 1], *(k.value for k in call.keywords if k.arg == keyword)]


@lru_cache(maxsize=256)
def _imports(function: Function) -> bool:
    """Whether the function contains an import statement."""
    return any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in walk(function))


def _is_read(name: str, claim: Claim, names_read: NamesRead) -> bool:
    """Whether the function reads the replaced name, or the edit would call it."""
    owner, _, last = name.rpartition(".")
    becomes = claim.edit.becomes.rpartition(".")[2]
    if last == "*":
        if owner in _TENSORS:
            return bool(names_read.methods)
        ours = owner in ("torch", "torch.nn.functional") and not claim.edit.becomes.startswith("ops.")
        return ours or any(n.startswith(owner + ".") and not vias for n, vias in names_read.torch.items())
    if owner in _TENSORS:
        return last in names_read.methods
    # A name that only creates children does not count here: _children_of_class handles it.
    return name in names_read.torch and not names_read.torch[name] or becomes == last and owner in _HOMES


_TENSORS = ("torch.Tensor", "torch._C.TensorBase")
_HOMES = ("torch", "torch.nn.functional", "torch.nn", "torch._C._nn")


def _name_for_message(name: str, claim: Claim) -> str:
    return claim.edit.becomes if name.endswith("*") else name


def _children_of_class(name: str, names_read: NamesRead) -> set[str]:
    """The children that belong to a replaced class, or to a class with a replaced method."""
    if name.startswith(_EVERY_MODULE):
        last = name.rpartition(".")[2]
        affects_modules = is_looked_up_by_modules(last) or last == "*" or any(r.name == last for r in names_read.names)
        return {via for vias in names_read.torch.values() for via in vias} if affects_modules else set()
    owner = name.rpartition(".")[0]
    return {*names_read.torch.get(name, ()), *names_read.torch.get(owner, ())}
