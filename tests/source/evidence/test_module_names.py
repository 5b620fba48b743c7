"""The table has all names that torch's layers look up, for every version of torch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType

import pytest
import torch

from autofuse.ir.vocabulary import MODULES
from autofuse.source.evidence.module_names import is_looked_up_by_modules

FUNCTIONS = {"hardswish"}  # looked up in torch.nn.functional


def layers() -> Iterator[type]:
    for name in MODULES:
        made: object = torch if name.startswith("torch.") else None
        for part in name.split(".")[1:]:
            made = getattr(made, part, None)
        if isinstance(made, type):
            yield made


def nested_code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_code_objects(constant)


def names_in(kind: type) -> Iterator[str]:
    for made in (m for base in kind.__mro__[:-1] for m in vars(base).values()):
        function = inspect.unwrap(getattr(made, "fget", None) or getattr(made, "__func__", made))
        if inspect.isfunction(function) and function.__module__.startswith(
            "torch.nn."
        ):  # another library may have replaced a method
            yield from (name for code in nested_code_objects(function.__code__) for name in code.co_names)


def names_of_a_module() -> Iterator[str]:
    """The attributes that torch gives a module; another library may have added methods to the class."""
    for name in dir(torch.nn.Module()):
        method = getattr(torch.nn.Module, name, None)
        if not inspect.isfunction(method) or method.__module__.startswith("torch."):
            yield name


def test_the_table_has_every_name_in_the_code_of_a_layer() -> None:
    names = {name for kind in layers() for name in names_in(kind)} | set(names_of_a_module())
    assert len(names) > 100
    of_modules = {n for n in names if n.isidentifier() and n not in FUNCTIONS}
    assert [n for n in sorted(of_modules) if not is_looked_up_by_modules(n)] == []


@pytest.mark.parametrize("name", ["smart_apply", "shorthand", "count_parameters"])
def test_the_table_has_no_other_names(name: str) -> None:
    assert not is_looked_up_by_modules(name)
