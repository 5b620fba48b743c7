"""Checks that no code inspects the function: its local variables, its source text, or its bytecode.

An edit removes local variables, so `frame.f_locals["p"]` fails. It also changes `inspect.getsource(M)` and
`f.__code__.co_names`. Helpers, tracers and tracebacks can reach the frame of any function. So every inspection counts
that is in the file, in a file that it imports, or in a file that imports it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.claim import Claim, Missing

_FRAME_FUNCTIONS = frozenset({"getargvalues", "getinnerframes", "getouterframes"})
_LOCALS_KEYWORDS = frozenset({"capture_locals", "show_locals"})
_SOURCE_FUNCTIONS = frozenset("getsource getsourcelines getsourceblock getline getlines findsource".split())
_CODE_ATTRIBUTES = frozenset(
    "co_names co_varnames co_consts co_nlocals co_code co_freevars co_cellvars co_stacksize".split()
)
_BYTECODE_FUNCTIONS = frozenset({"get_instructions", "Bytecode", "disassemble", "getclosurevars", "code_info"})
_READING_FUNCTIONS = frozenset({"read_text", "read_bytes", "open"})
_MAX_SHOWN = 60  # characters of the code that a message repeats


def function_is_not_inspected(claim: Claim) -> Iterator[Missing | Fails]:
    """Reports code that may read the local variables, the source text or the bytecode of the function."""
    own, files = claim.defined.scope, claim.files
    for scope in (own, *(files.files_inspecting_functions(own) if files is not None else ())):
        inspection = scope.index(_find_inspection)
        if inspection is not None:
            text = ast.unparse(inspection[0]).splitlines()[0]
            excerpt = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
            where = "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "
            yield Missing(
                f"assumes that `{excerpt}` in {where}line {inspection[0].lineno} does not read {inspection[1]}"
            )
            return


def _find_inspection(tree: ast.Module) -> tuple[ast.expr, str] | None:
    """Returns the first expression of a file that inspects functions, and what it may read of this one."""
    inspections = ((n, read) for n in walk(tree) if isinstance(n, ast.expr) and (read := _inspected_part(n)))
    return min(inspections, key=lambda pair: pair[0].lineno, default=None)


def _inspected_part(n: ast.expr) -> str:
    """Returns what an expression may read of the function; "" if it inspects nothing."""
    match n:
        case ast.Attribute(attr="f_locals"):
            return "the local variables of this function"
        case ast.Attribute(attr=name) if name in _CODE_ATTRIBUTES:
            return "the bytecode of this function"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=keywords):
            shows_locals = any(k.arg in _LOCALS_KEYWORDS and not _is_false(k.value) for k in keywords)
            if name in _FRAME_FUNCTIONS or shows_locals or name == "getattr" and _names_locals(args):
                return "the local variables of this function"
            if name in _SOURCE_FUNCTIONS or name in _READING_FUNCTIONS and _is_own_file(n):
                return "the source text of this function"
            if name in _BYTECODE_FUNCTIONS or name == "dis" and args:
                return "the bytecode of this function"
    return ""


def _names_locals(arguments: list[ast.expr]) -> bool:
    return any(isinstance(a, ast.Constant) and a.value == "f_locals" for a in arguments)


def _is_own_file(call: ast.Call) -> bool:
    """Whether a call reads the file itself, by `__file__`, and not another file in its folder."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    for node in (*call.args[:1], *([owner] if owner is not None else [])):
        while isinstance(node, ast.Call) and node.args:
            node = node.args[0]
        if isinstance(node, ast.Name) and node.id == "__file__":
            return True
    return False


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value
