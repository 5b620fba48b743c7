"""The words that code looks for when it inspects a function: its source text, or the names of its variables.

`"get_interface(" in inspect.getsource(module)` asks for one word, so an edit of code without that word does not change
the answer. This file looks at syntax.
"""

from __future__ import annotations

import ast
import re

from autofuse.source.capture.bindings import Function
from autofuse.source.capture.syntax import walk

_WORD = re.compile(r"\w{3,}")
_SEARCHES = frozenset({"search", "match", "findall", "finditer"})
Words = frozenset[str]


def words_looked_for(inspection: ast.expr, function: Function | None) -> Words | None:
    """Return the words that an inspection looks for; None if it may read anything.

    Args:
        inspection: a call that returns the source text, or an attribute such as `co_varnames`.
        function: the function that contains it.
    """
    if function is None:
        return None
    nodes = list(walk(function))
    parents = {id(child): n for n in nodes for child in ast.iter_child_nodes(n)}
    if isinstance(inspection, ast.Attribute):
        return _words_of_names(inspection, parents, nodes) if inspection.attr == "co_varnames" else None
    return _words_of_source(inspection, parents, nodes)


def _words_of_source(call: ast.expr, parents: dict[int, ast.AST], nodes: list[ast.AST]) -> Words | None:
    """The words that a function looks for in the text that `call` returns, if it only searches it."""
    assigned = parents.get(id(call))
    if not isinstance(assigned, ast.Assign) or not isinstance(assigned.targets[0], ast.Name):
        return None
    name, words = assigned.targets[0].id, set[str]()
    uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and n is not assigned.targets[0]]
    for use in uses:
        found = _words_of_search(use, parents)
        if found is None:
            return None
        words |= found
    return frozenset(words)


def _words_of_search(text: ast.Name, parents: dict[int, ast.AST]) -> Words | None:
    """The words that one use of the text looks for: a literal, or nothing in the body of a function."""
    parent = parents.get(id(text))
    match parent:
        case ast.Compare(left=ast.Constant(value=str(literal)), ops=[ast.In() | ast.NotIn()]):
            return _longest_word(literal)
        case ast.Call(func=ast.Attribute(attr=how), args=[ast.Constant(value=str(pattern)), second, *_]) if (
            how in _SEARCHES and second is text and pattern.startswith("^class ")
        ):
            return frozenset()  # no edit writes or removes a class statement at the start of a line
        case ast.Attribute(attr="splitlines"):
            lines = parents.get(id(parents.get(id(parent))))
            if isinstance(lines, ast.Subscript) and isinstance(lines.slice, ast.Constant) and lines.slice.value == 0:
                return frozenset()  # the first line: a decorator, or the head of the definition
    return None


def _words_of_names(names: ast.Attribute, parents: dict[int, ast.AST], nodes: list[ast.AST]) -> Words | None:
    """The words that an expression looks for in the names of a function's variables. Arguments come first there."""
    match parent := parents.get(id(names)):
        case ast.Subscript(slice=ast.Slice(lower=None, upper=ast.expr() as upper)):
            counts = any(isinstance(n, ast.Attribute) and n.attr == "co_argcount" for n in walk(upper))
            return frozenset() if counts else None
        case ast.Compare(left=wanted, ops=[ast.In() | ast.NotIn()]):
            return _strings(wanted, nodes)
        case ast.Attribute(attr="index"):
            call = parents.get(id(parent))
            return _strings(call.args[0], nodes) if isinstance(call, ast.Call) and len(call.args) == 1 else None
    return None


def _strings(wanted: ast.expr, nodes: list[ast.AST]) -> Words | None:
    """The strings that an expression may be: a literal, or the variable of a loop over a list of literals."""
    if isinstance(wanted, ast.Constant) and isinstance(wanted.value, str):
        return frozenset({wanted.value})
    if not isinstance(wanted, ast.Name):
        return None
    stores = [n for n in nodes if isinstance(n, ast.For) and any(_is_name(t, wanted.id) for t in walk(n.target))]
    others = [
        n
        for n in nodes
        if isinstance(n, (ast.Assign, ast.arg, ast.NamedExpr, ast.comprehension)) and _binds(n, wanted.id)
    ]
    if len(stores) != 1 or others or not _is_name(stores[0].target, wanted.id):
        return None
    listed: ast.expr | None = stores[0].iter
    if isinstance(listed, ast.Name):
        values = [
            n.value for n in nodes if isinstance(n, ast.Assign) and any(_is_name(t, listed.id) for t in n.targets)
        ]
        uses = sum(_is_name(n, listed.id) for n in nodes)
        listed = values[0] if len(values) == 1 and uses == 2 else None
    elements = listed.elts if isinstance(listed, (ast.List, ast.Tuple, ast.Set)) else []
    strings = [e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return frozenset(strings) if strings and len(strings) == len(elements) else None


def _binds(n: ast.AST, name: str) -> bool:
    if isinstance(n, ast.arg):
        return n.arg == name
    targets = n.targets if isinstance(n, ast.Assign) else [n.target]  # type: ignore[attr-defined]
    stored = (t for target in targets for t in walk(target) if isinstance(t, ast.Name) and isinstance(t.ctx, ast.Store))
    return any(t.id == name for t in stored)  # `kwargs[name] = value` only reads the name


def _is_name(n: ast.AST, name: str) -> bool:
    return isinstance(n, ast.Name) and n.id == name


def _longest_word(literal: str) -> Words | None:
    words = _WORD.findall(literal)
    return frozenset({max(words, key=len)}) if words else None
