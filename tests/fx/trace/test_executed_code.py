"""The text of code shows what it passes on and what it can reach by no name."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from autofuse.fx.trace.code_facts import facts_of
from autofuse.fx.trace.executed_code import callbacks, is_users_module, reads_any_global
from autofuse.fx.trace.user_code import Execution


def _note(value: Any) -> Any:
    return value


class _Spy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, kinds, args, kwargs or {})


def _code(text: str) -> types.CodeType:
    return compile(text, "program", "eval")


@pytest.mark.parametrize(
    ("text", "passed"), [("_note(1)", False), ("list(map(_note, [1]))", True), ("_note.calls", False)]
)
def test_a_function_that_is_not_called_where_it_is_loaded_is_passed_on(text: str, passed: bool) -> None:
    source = f"def program():\n    return {text}\n"
    namespace: dict[str, Any] = {"_note": _note}
    exec(compile(source, "program", "exec"), namespace)
    loads = [load for load in facts_of(namespace["program"].__code__).loads if load.name == "_note"]
    assert [bool(list(callbacks(_note, load))) for load in loads] == [passed]


def test_the_methods_of_a_subclass_of_tensor_are_called_back() -> None:
    load = facts_of(_code("_Spy(1)")).loads[0]
    assert [f.__name__ for f in callbacks(_Spy, load)] == ["__torch_function__"]


@pytest.mark.parametrize(("text", "answer"), [("globals()['T']", True), ("eval('T')", True), ("vars(T)", False)])
def test_code_may_reach_any_global(text: str, answer: bool) -> None:
    assert reads_any_global(Execution(_code(text), {})) is answer


@pytest.mark.parametrize(("text", "answer"), [("setattr(T, n, 1)", True), ("vars(T)", True), ("T.n", False)])
def test_code_may_set_attributes_whose_names_it_computes(text: str, answer: bool) -> None:
    assert facts_of(_code(text)).stores_by_name is answer


def test_modules_of_python_and_torch_are_not_the_users() -> None:
    assert [is_users_module(m) for m in (types, torch, types.ModuleType("settings"), 3)] == [False, False, True, False]
