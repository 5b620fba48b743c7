"""Reads facts about a function or a class from sources, by parsing.

This file reads Python's syntax, and does not depend on packages.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


def module_file(root: Path, module: str) -> Path | None:
    """Return the source file of a module below `root`; None if there is none."""
    path = root.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def function_facts(file: Path, name: str) -> Facts | None:
    """Return the parameters of a function, and the numbers of values that it returns.

    For an autograd function, these are the facts of its forward; for another class, of its constructor.

    Args:
        file: the source of a module.
        name: the function or class.

    Returns:
        {"autograd": bool, "takes": "x, eps=1e-06", "returns": [count; None for a result that is not written as a
        tuple]}, without annotations, and with `...` for a default that is not a literal. None if the module has nothing
        of that name.
    """
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if getattr(node, "name", None) != name:
            continue
        if isinstance(node, ast.FunctionDef):
            return {"autograd": False, "takes": _parameters_text(node.args), "returns": _returns(node)}
        if isinstance(node, ast.ClassDef):
            return _class_facts(node)
    return None


def _class_facts(node: ast.ClassDef) -> Facts | None:
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    is_autograd = "forward" in methods
    called = methods.get("forward" if is_autograd else "__init__")
    if called is None:
        return None
    del called.args.args[0]  # the context (ctx), or self
    return {"autograd": is_autograd, "takes": _parameters_text(called.args), "returns": _returns(called)}


def _parameters_text(args: ast.arguments) -> str:
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    for arg in every:
        if arg is not None:
            arg.annotation = None
    args.defaults = [_literal(default) for default in args.defaults]
    args.kw_defaults = [None if default is None else _literal(default) for default in args.kw_defaults]
    return ast.unparse(args)


def _literal(default: ast.expr) -> ast.expr:
    try:
        ast.literal_eval(default)
    except ValueError:
        return ast.Constant(...)
    return default


def _returns(function: ast.FunctionDef) -> list[int | None]:
    """The numbers of values of its return statements, each once, in the order of the source."""
    counts: list[int | None] = []
    waiting: list[ast.AST] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            count = len(node.value.elts) if isinstance(node.value, ast.Tuple) else None
            if count not in counts:
                counts.append(count)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += reversed(list(ast.iter_child_nodes(node)))
    return counts
