"""The index of the nodes of a file agrees with walks of its tree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from autofuse.source.capture import node_index as own_module
from autofuse.source.capture.node_index import node_index

NESTED = """
import torch

@decorated(lambda x: x)
class Outer(Base):
    width = size()

    def method(self, x=default()):
        class Inner:
            def deep(self):
                return call(lambda y: inner(y))

        async def helper():
            return [made() for _ in x]

        return x.shape

last = end()
"""
TEXTS = {"nested": NESTED, "a file of autofuse": Path(own_module.__file__).read_text(), "empty": ""}


def around(tree: ast.Module) -> dict[ast.AST, tuple[tuple[ast.AST, ...], str]]:
    """The functions around each node, and the name of the innermost class, by a walk from the top."""
    found: dict[ast.AST, tuple[tuple[ast.AST, ...], str]] = {}

    def visit(node: ast.AST, scopes: tuple[ast.AST, ...], owner: str) -> None:
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
            scopes = (*scopes, node)
        owner = node.name if isinstance(node, ast.ClassDef) else owner
        found[node] = scopes, owner
        for child in ast.iter_child_nodes(node):
            visit(child, scopes, owner)

    visit(tree, (), "")
    return found


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_each_kind_has_its_nodes_with_the_functions_and_the_class_around_them(text: str) -> None:
    tree = ast.parse(text)
    expected = around(tree)
    index = node_index(tree)
    for kind in (ast.Call, ast.Attribute, ast.Name, ast.ClassDef, ast.FunctionDef, ast.Return, ast.Constant):
        assert set(index.of(kind)) == {n for n in expected if type(n) is kind}
        for position, node in index.placed(kind):
            assert (index.scopes(position), index.class_name(position)) == expected[node]
    assert set(index.functions()) == {n for n in expected if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_the_index_of_a_tree_is_created_once() -> None:
    tree = ast.parse(NESTED)
    node_index(tree)
    assert node_index(tree) is node_index(tree)
