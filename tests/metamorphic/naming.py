"""Preserving: other names for variables, arguments, attributes and imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.metamorphic.draft import (
    COMPREHENSIONS,
    Change,
    Draft,
    Function,
    Scope,
    assignment,
    binds,
    expression,
    name,
    reads,
    statement,
)


def rename_a_variable(draft: Draft) -> Iterator[Change]:
    """Rename a variable: `scores` becomes `att` in its function."""
    for function in draft.functions():
        if _has_nested_function(function):
            continue
        arguments = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        keywords = {k.arg for k in ast.walk(draft.tree) if isinstance(k, ast.keyword)}
        inner = {n for c in ast.walk(function) if isinstance(c, COMPREHENSIONS) for n in binds(c)}
        for old in sorted(({*binds(function)} | arguments) - keywords - inner - {"self"} - _declared_names(function)):
            new = draft.fresh()
            yield lambda function=function, old=old, new=new: _rename(function, old, new)


def _rename(node: ast.AST, old: str, new: str) -> None:
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and n.id == old:
            n.id = new
        elif isinstance(n, ast.arg) and n.arg == old:
            n.arg = new


def _has_nested_function(function: Function) -> bool:
    return any(isinstance(n, Scope) for s in function.body for n in ast.walk(s))


def _declared_names(function: Function) -> set[str]:
    return {n for s in ast.walk(function) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names}


def rename_an_attribute(draft: Draft) -> Iterator[Change]:
    """Rename an attribute: `self.qkv` becomes `self.inner` in every method."""
    accessed = [n for n in ast.walk(draft.tree) if isinstance(n, ast.Attribute)]
    strings = {n.value for n in ast.walk(draft.tree) if isinstance(n, ast.Constant)}
    stored = {n.attr for n in accessed if isinstance(n.ctx, ast.Store) and _is_of_self(n)}
    for old in sorted(stored - strings):
        if all(_is_of_self(n) for n in accessed if n.attr == old) and not hasattr(ast, old):
            new = draft.fresh("part_of_it")

            def change(old: str = old, new: str = new) -> None:
                for n in accessed:
                    n.attr = new if n.attr == old else n.attr

            yield change


def _is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def alias_an_import(draft: Draft) -> Iterator[Change]:
    """`import torch as t`; `from torch.nn.functional import softmax as sm`."""
    for node in draft.tree.body:
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            own = alias.asname or alias.name
            if "." in own or getattr(node, "module", "") == "__future__":
                continue

            def change(alias: ast.alias = alias, own: str = own) -> None:
                new = draft.fresh(own[:1].lower() + "_lib")
                alias.asname = new
                for n in ast.walk(draft.tree):
                    if isinstance(n, ast.Name) and n.id == own:
                        n.id = new

            if not any(isinstance(n, ast.arg) and n.arg == own for n in ast.walk(draft.tree)):
                yield change


def import_a_name_itself(draft: Draft) -> Iterator[Change]:
    """`F.softmax(...)` is `sm(...)`, from `from torch.nn.functional import softmax as sm`."""
    for node in draft.expressions(ast.Attribute):
        meaning = draft.qualified(node)
        if not meaning.startswith(("torch.", "math.")) or meaning in _MODULES:
            continue

        def change(node: ast.Attribute = node, meaning: str = meaning) -> None:
            module, _, last = meaning.rpartition(".")
            new = draft.fresh(last)
            draft.insert_import(f"from {module} import {last}" + (f" as {new}" if new != last else ""))
            draft.replace(node, name(new))

        yield change


_MODULES = {"torch.nn", "torch.nn.functional", "torch.optim", "torch.special", "torch.linalg"}


def spell_an_import_out(draft: Draft) -> Iterator[Change]:
    """`F.softmax` is `torch.nn.functional.softmax`, and `nn.Linear` is `torch.nn.Linear`."""
    for node in [n for n in ast.walk(draft.tree) if isinstance(n, (ast.Attribute, ast.Name))]:
        meaning = draft.qualified(node)
        if not meaning.startswith("torch.") or not isinstance(node.ctx, ast.Load):
            continue

        def change(node: ast.expr = node, meaning: str = meaning) -> None:
            draft.insert_import("import torch.nn.functional" if "functional" in meaning else "import torch")
            draft.replace(node, expression(meaning))

        if draft.imports.get("torch", "torch") == "torch":
            yield change


def import_functional_otherwise(draft: Draft) -> Iterator[Change]:
    """`import torch.nn.functional as F` is `from torch.nn import functional as F`."""
    for node in draft.tree.body:
        match node:
            case ast.Import(names=[ast.alias(name="torch.nn.functional", asname=str(own))]):
                yield lambda node=node, own=own: draft.replace(
                    node, statement(f"from torch.nn import functional as {own}")
                )
            case ast.Import(names=[ast.alias(name="torch.nn", asname=str(own))]):
                yield lambda node=node, own=own: draft.replace(node, statement(f"from torch import nn as {own}"))
            case ast.ImportFrom(module="torch", names=[ast.alias(name="nn", asname=None)]):
                yield lambda node=node: draft.replace(node, statement("import torch.nn as nn"))


def import_inside_the_function(draft: Draft) -> Iterator[Change]:
    """Import inside the function."""
    for function in draft.functions():
        used = reads(function) - binds(function)
        for node in draft.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__":
                if any((a.asname or a.name.partition(".")[0]) in used for a in node.names):
                    yield lambda function=function, node=node: function.body.insert(0, statement(ast.unparse(node)))


def name_a_function(draft: Draft) -> Iterator[Change]:
    """`F.softmax(...)` is `att(...)`, where the file says `att = F.softmax`."""
    for node in draft.expressions(ast.Attribute):
        if draft.qualified(node).startswith("torch.nn.functional."):

            def change(node: ast.Attribute = node) -> None:
                new = draft.fresh()
                last = max(i for i, n in enumerate(draft.tree.body) if isinstance(n, (ast.Import, ast.ImportFrom)))
                draft.tree.body.insert(last + 1, assignment(new, expression(ast.unparse(node))))
                draft.replace(node, name(new))

            yield change


ALL = (
    rename_a_variable, rename_a_variable, rename_an_attribute, alias_an_import, import_a_name_itself,
    spell_an_import_out, import_functional_otherwise, import_inside_the_function, name_a_function,
)  # fmt: skip
