"""The tests of several variants as one sequence of statements, and their texts."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from autofuse.fx.install.conditions import FOUND, VariantTests, write_dispatch
from autofuse.fx.trace.guards import in_words


def find_variant(variants: list[VariantTests], **arguments: Any) -> int:
    """The index of the variant whose tests hold for these arguments."""
    made = write_dispatch(variants, "self")
    scope = dict(made.scope)
    lines = "".join(f"    {line}\n" for line in made.lines)
    exec(f"def find({', '.join(arguments)}):\n{lines}    return {FOUND}\n", scope)
    number: int = scope["find"](**arguments)
    return number


def failed_tests(*tests: str, inputs: tuple[str, ...] = (), **names: Any) -> VariantTests:
    return VariantTests(tests, inputs, names)


def text(*variants: VariantTests) -> str:
    return "\n".join(write_dispatch(variants, "self").lines)


def test_the_first_that_holds_is_found() -> None:
    variants = [failed_tests("x > 2", "y is None"), failed_tests("x > 2"), failed_tests("y is None")]
    assert [find_variant(variants, x=x, y=y) for x, y in ((3, None), (3, 1), (1, None), (1, 1))] == [0, 1, 2, -1]


def test_shared_tests_of_variants_run_once() -> None:
    source = text(failed_tests("x.ndim == 3", "mask is None"), failed_tests("x.ndim == 3", "mask is not None"))
    assert source.count("x.ndim") == 1


def test_a_value_that_is_tested_twice_is_read_once() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    tests = ('_unwatched(self._modules["0"])', '_plain(_held(self._modules["0"], "_parameters", "weight"))')
    source = text(failed_tests(*tests, inputs=('_held(self._modules["0"], "_parameters", "weight")',)))
    assert source.count("_modules") == source.count("'_parameters'") == 1
    assert find_variant([failed_tests(*tests)], self=module) == 0
    module[0].register_forward_hook(lambda *_: None)
    assert find_variant([failed_tests(*tests)], self=module) == -1


def test_a_size_that_follows_from_another_is_not_tested() -> None:
    source = text(failed_tests("x.shape[2] == 16", "(x.shape[2] // 2) == 8", "x.shape[1] == min(x.shape[1], 32)"))
    assert "//" not in source and "<= 32" in source and source.count("x.shape") == 1


def test_a_size_that_contradicts_another_is_tested() -> None:
    variant = failed_tests("x.shape[0] == 16", "(x.shape[0] // 2) == 9")
    assert find_variant([variant], x=torch.ones(16)) == -1


def test_a_rank_is_taken_from_a_shape_that_is_read_anyway() -> None:
    assert "ndim" not in text(failed_tests("x.ndim == 2", "x.shape[0] == 3"))
    assert find_variant([failed_tests("x.ndim == 2", "x.shape[0] == 3")], x=torch.ones(3, 1)) == 0


def test_a_test_that_raises_fails_for_its_variant_only() -> None:
    variants = [failed_tests("x.missing == 1", "y == 1"), failed_tests("y == 1", "x is not None")]
    assert find_variant(variants, x=SimpleNamespace(), y=1) == 1
    assert find_variant(variants, x=None, y=1) == -1
    assert find_variant([failed_tests("x == 1")], x=torch.ones(3)) == -1


def test_a_tensor_is_not_a_number() -> None:
    assert find_variant([failed_tests("x == 1")], x=1) == 0
    assert find_variant([failed_tests("x == 1")], x=torch.tensor(1)) == -1
    assert find_variant([failed_tests("x == _c0", _c0=0.5)], x=torch.tensor(0.5)) == -1


def test_an_attribute_that_a_module_lacks_may_come_from_anywhere() -> None:
    class Changing(nn.Module):
        pass

    module, test = Changing(), failed_tests("_lacks(self, 'extra')")
    assert find_variant([test], self=module) == 0
    Changing.extra = 1  # type: ignore[attr-defined]
    assert find_variant([test], self=module) == -1
    del Changing.extra  # type: ignore[attr-defined]
    module.register_buffer("extra", None)
    assert find_variant([test], self=module) == -1


def test_statements_are_python() -> None:
    ast.parse(
        text(
            failed_tests("_unhooked()"),
            failed_tests("not (a or b)", "kwargs.keys() == _EMPTY"),
            failed_tests("a.keys() == {'b'}"),
        )
    )


def test_words_are_for_people() -> None:
    child = 'self._modules["mlp"]._modules["0"]'
    assert in_words("x.dtype is _c0", {"_c0": torch.float32}) == "x.dtype is torch.float32"
    assert in_words("self.training is False", {}) == "self.training is False"
    assert in_words(f"_unwatched({child})", {}) == "no hooks on self.mlp[0]"
    assert in_words(f"type({child}) is _c1", {"_c1": nn.Linear}) == "type(self.mlp[0]) is Linear"
    assert in_words(f'_held({child}, "_parameters", "bias") is None', {}) == "self.mlp[0].bias is None"
    assert in_words(f'_plain(_held({child}, "_parameters", "bias"))', {}) == "self.mlp[0].bias is a plain tensor"
    assert in_words('not _autocast("cpu")', {}) == "autocast is off on cpu"
    assert in_words("_unhooked()", {}) == "no global module hooks"
