"""Does anything look into the function? At the names that it holds while it runs, at its text, or at its bytecode.

`frame.f_locals["p"]` misses a name that an edit removes, `inspect.getsource(M)` and `f.__code__.co_names` are others.
Frames are reached by helpers, tracers and tracebacks, so a look anywhere in the file, in a file that it imports or in
one that imports it, may be at any function. Knows names of the standard library and syntax.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_OF_FRAMES = frozenset({"getargvalues", "getinnerframes", "getouterframes"})
_SHOW_FRAMES = frozenset({"capture_locals", "show_locals"})
_OF_TEXT = frozenset("getsource getsourcelines getsourceblock getline getlines findsource".split())
_OF_CODE = frozenset("co_names co_varnames co_consts co_nlocals co_code co_freevars co_cellvars co_stacksize".split())
_DISASSEMBLE = frozenset({"get_instructions", "Bytecode", "disassemble", "getclosurevars", "code_info"})
_READS_FILE = frozenset({"read_text", "read_bytes", "open"})
_LONGEST = 60  # characters of the code that a message repeats


def nothing_looks_inside(claim: Claim) -> Iterator[Missing | Fails]:
    """Nothing that the given files show looks at the names, the text or the bytecode of the function."""
    own, files = claim.defined.scope, claim.files
    for scope in (own, *(files.looking_inside(own) if files is not None else ())):
        found = scope.index(_looks)
        if found is not None:
            text = ast.unparse(found[0]).splitlines()[0]
            told = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
            where = "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "
            yield Missing(f"assumes that `{told}` in {where}line {found[0].lineno} reads {found[1]}")
            return


def _looks(tree: ast.Module) -> tuple[ast.expr, str] | None:
    """The first place of a file that looks into functions, and what it does not read by assumption."""
    found = ((n, what) for n in walk(tree) if isinstance(n, ast.expr) and (what := _looked_at(n)))
    return min(found, key=lambda f: f[0].lineno, default=None)


def _looked_at(n: ast.expr) -> str:
    match n:
        case ast.Attribute(attr="f_locals"):
            return "the names of no frame of this"
        case ast.Attribute(attr=name) if name in _OF_CODE:
            return "not the bytecode of this"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=keywords):
            shown = any(k.arg in _SHOW_FRAMES and not _is_false(k.value) for k in keywords)
            if name in _OF_FRAMES or shown or name == "getattr" and _names_locals(args):
                return "the names of no frame of this"
            if name in _OF_TEXT or name in _READS_FILE and _is_own_file(n):
                return "not the text of this"
            if name in _DISASSEMBLE or name == "dis" and args:
                return "not the bytecode of this"
    return ""


def _names_locals(arguments: list[ast.expr]) -> bool:
    return any(isinstance(a, ast.Constant) and a.value == "f_locals" for a in arguments)


def _is_own_file(call: ast.Call) -> bool:
    """Whether a call opens `__file__` or reads `Path(__file__)`: not a file beside it."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    for node in (*call.args[:1], *([owner] if owner is not None else [])):
        while isinstance(node, ast.Call) and node.args:
            node = node.args[0]
        if isinstance(node, ast.Name) and node.id == "__file__":
            return True
    return False


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
