"""Checks that no code inspects the function: its local variables, its source text, or its bytecode.

An edit removes local variables, so `frame.f_locals["p"]` fails. It also changes `inspect.getsource(M)` and
`f.__code__.co_names`. Helpers, tracers and tracebacks can reach the frame of any function. So every inspection counts
that is in the file, in a file that it imports, or in a file that imports it, unless it only looks for words that
neither the function nor the edit contains (inspected_words.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from autofuse.rule import Fails
from autofuse.source.capture.bindings import Function
from autofuse.source.capture.node_index import node_index
from autofuse.source.evidence.claim import Claim, Missing
from autofuse.source.evidence.inspected_words import Words, words_looked_for

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
        for inspection, read, words in scope.index(_find_inspections):
            if words is not None and not _mentions_one_of(claim, words):
                continue
            text = ast.unparse(inspection).splitlines()[0]
            excerpt = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
            where = "" if scope.tree is own.tree or scope.file is None else f"{scope.file.name}, "
            yield Missing(f"assumes that `{excerpt}` in {where}line {inspection.lineno} does not read {read}")
            return


def _mentions_one_of(claim: Claim, words: Words) -> bool:
    """Whether the text of the function before or after the edit contains one of `words`; True if it is not known."""
    if not claim.function_text:
        return bool(words)
    edit = claim.edit
    new = [n.text for _, n in edit.replacements] + [t for _, t in edit.insertions] + list(edit.imports)
    new += [f"{name}={value}" for _, name, value in edit.additions]
    return any(w in text for w in words for text in (claim.function_text, *new))


def _find_inspections(tree: ast.Module) -> tuple[tuple[ast.expr, str, Words | None], ...]:
    """Returns the expressions of a file that inspect functions, what each may read, and the words that it looks for."""
    index, found = node_index(tree), list[tuple[ast.expr, str, Words | None]]()
    for kind in (ast.Attribute, ast.Call):
        for position, n in index.placed(kind):
            if read := _inspected_part(n):
                function = index.scopes(position)[-1]
                words = words_looked_for(n, function) if isinstance(function, Function) else None
                found.append((n, read, words))
    return tuple(sorted(found, key=lambda entry: entry[0].lineno))


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
