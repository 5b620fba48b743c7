"""Functions and classes of torch's that the given files replace: `F.softmax = mine`, `nn.Softmax.forward = mine`.

They are one for the whole program, so the code that was read, and the code that the edit would call, may both be
others. Knows changes and what a function reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from autofuse.reasons import code_that_runs
from autofuse.reasons.reason import because
from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.call_index import call_index
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.changes import CodeChange, changes_in
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.module_names import looked_up_by_modules
from autofuse.source.evidence.names_read import NamesRead

_LONGEST = 60  # characters of the code that a message repeats
_EVERY_MODULE = ("torch.nn.Module.", "torch.nn.modules.Module.", "torch.nn.modules.module.Module.")


def patched(claim: Claim, read: NamesRead) -> Fails | dict[str, CodeChange]:
    """Fails where a function that is read or would be called is replaced; else the children whose class is."""
    found = dict[str, CodeChange]()
    scope = claim.defined.scope
    for other in (scope, *_others(claim)):
        for change, name in other.derived(_replacements):
            if name.endswith("*") and other is not scope:
                continue  # it may be another name: that is assumed
            if _is_read(name, claim, read):
                where = f"in {other.file} " if other is not scope else ""
                text = ast.unparse(change.node).splitlines()[0]
                how = f"{where}may replace" if name.endswith("*") else f"{where}replaces"
                why = because(code_that_runs.OTHER_CODE_RUNS, name=_called(name, claim), how=how)
                return Fails(why, enables=False, text=text, line=change.line)
            found |= dict.fromkeys(sorted(_made_of(name, read)), change)
    return found


def may_be_patched(claim: Claim, read: NamesRead) -> Iterator[Missing]:
    """What is assumed where another file gives something of torch's to a name that it computes."""
    for other in _others(claim):
        for change, name in other.derived(_replacements):
            if name.endswith("*") and _is_read(name, claim, read):
                text, file = ast.unparse(change.node).splitlines()[0], other.file.name if other.file is not None else ""
                told = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
                yield Missing(f"assumes that `{told}` in {file}, line {change.line} replaces nothing that runs here")
                return


def _others(claim: Claim) -> tuple[FileScope, ...]:
    return claim.files.patching(claim.defined.scope, _replaces) if claim.files is not None else ()


def _replaces(scope: FileScope) -> bool:
    return bool(scope.derived(_replacements))


def _replacements(scope: FileScope) -> list[tuple[CodeChange, str]]:
    """Every change of a file that replaces something of torch's, with its full name."""
    given = dict[tuple[Function, str], set[str]]()
    return [(change, name) for change in scope.index(changes_in) for name in _replaced(change, scope, given)]


def _replaced(change: CodeChange, scope: FileScope, given: dict[tuple[Function, str], set[str]]) -> list[str]:
    """The full name of what a change replaces, if it is torch's; it ends in `*` where the name is computed."""
    if change.kind != "assigned":
        return []
    if change.receiver is None:
        return [change.path] if change.path.startswith("torch.") else []
    inside = change.function is not None and _imports(change.function)
    seen = scope.within(change.function) if inside and change.function is not None else scope
    owners = {seen.name_of(change.receiver) or _module_by_name(change.receiver)}
    if change.function is not None and isinstance(change.receiver, ast.Name):
        key = change.function, change.receiver.id
        if key not in given:
            given[key] = _given_owners(*key, scope)
        owners |= given[key]
    return [f"{o}.{change.name or '*'}" for o in sorted(owners) if o == "torch" or o.startswith("torch.")]


def _module_by_name(receiver: ast.expr) -> str:
    """`sys.modules["torch.nn.functional"]`, `importlib.import_module("torch.nn.functional")`."""
    match receiver:
        case ast.Subscript(value=ast.Attribute(attr="modules") | ast.Name("modules"), slice=ast.Constant(str(name))):
            return name
        case ast.Call(func=ast.Name(id=how) | ast.Attribute(attr=how), args=[ast.Constant(str(name)), *_]) if how in (
            "import_module",
            "__import__",
        ):
            return name
    return ""


def _given_owners(function: Function, name: str, scope: FileScope) -> set[str]:
    """What the calls of a function give to the argument `name`, which it changes: `patch(torch.Tensor)`."""
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if name not in arguments:
        return set()
    at, found = arguments.index(name), set[str]()
    for called in scope.index(call_index).calls[function.name]:
        given = [*called.node.args[at : at + 1], *(k.value for k in called.node.keywords if k.arg == arguments[at])]
        found |= {scope.name_of(g) or "" for g in given}
    return found


@lru_cache(maxsize=256)
def _imports(function: Function) -> bool:
    """Whether a function imports anything by itself."""
    return any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in walk(function))


def _is_read(name: str, claim: Claim, read: NamesRead) -> bool:
    """Whether the function reads what is replaced, or the edit would call it."""
    owner, _, last = name.rpartition(".")
    becomes = claim.edit.becomes.rpartition(".")[2]
    if last == "*":
        if owner in _TENSORS:
            return bool(read.methods)
        ours = owner in ("torch", "torch.nn.functional") and not claim.edit.becomes.startswith("ops.")
        return ours or any(n.startswith(owner + ".") and not vias for n, vias in read.torch.items())
    if owner in _TENSORS:
        return last in read.methods
    return name in read.torch and not read.torch[name] or becomes == last and owner in _HOMES


_TENSORS = ("torch.Tensor", "torch._C.TensorBase")
_HOMES = ("torch", "torch.nn.functional", "torch.nn", "torch._C._nn")


def _called(name: str, claim: Claim) -> str:
    return claim.edit.becomes if name.endswith("*") else name


def _made_of(name: str, read: NamesRead) -> set[str]:
    """The children that are made by a class that is replaced, or one of whose methods is."""
    if name.startswith(_EVERY_MODULE):
        last = name.rpartition(".")[2]
        seen = looked_up_by_modules(last) or last == "*" or any(r.name == last for r in read.names)
        return {via for vias in read.torch.values() for via in vias} if seen else set()
    owner = name.rpartition(".")[0]
    return {*read.torch.get(name, ()), *read.torch.get(owner, ())}
