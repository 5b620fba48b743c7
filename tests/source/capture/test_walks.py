"""A cached walk over a tree visits the same nodes in the same order as any other walk."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

import pytest

import autofuse.source
from autofuse.source.capture.syntax import cache_walks, drop_cached_walks, parts, walk

FILES = sorted(Path(autofuse.source.__file__).parent.rglob("*.py"))[::12]
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_cached_walk_visits_the_same_nodes(file: Path) -> None:
    tree = tree_of(file)
    before = [(n, list(walk(n))) for n in walk(tree) if isinstance(n, (ast.Module, *DEFINITIONS))]
    cache_walks(tree)
    assert all(list(walk(n)) == inside for n, inside in before)
    drop_cached_walks(tree)
    assert not any("_row" in vars(n) for n in walk(tree))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_the_walk_of_a_changed_copy_visits_its_own_nodes(copied: type) -> None:
    tree = ast.parse("def f(x):\n    return x\n")
    cache_walks(tree)
    made = copied(tree.body[0])
    made.body = [ast.Pass()]
    assert any(isinstance(n, ast.Pass) for n in walk(made))
    assert not any(isinstance(n, ast.Return) for n in walk(made))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_parts_leaves_out_only_leaves(file: Path) -> None:
    def nodes_through_parts(node: ast.AST) -> list[ast.AST]:
        return [node, *(n for p in parts(node) for n in nodes_through_parts(p))]

    tree = tree_of(file)
    left_out = {id(n) for n in walk(tree)} - {id(n) for n in nodes_through_parts(tree)}
    assert not any(list(parts(n)) for n in walk(tree) if id(n) in left_out)
