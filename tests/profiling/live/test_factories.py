"""What a factory may return, and the message for other results."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autofuse.profiling.live.factories import NoSubject, built_model_of, load

MODEL, X = nn.Linear(2, 2), torch.ones(1, 2)


@dataclass
class Case:
    """A model with its inputs, as attributes of an object."""

    model: nn.Module
    inputs: tuple[Tensor, ...]


@dataclass(slots=True)
class Narrow:
    """The same with slots, so without a `__dict__`."""

    model: nn.Module
    inputs: Tensor


def step(model: nn.Module, inputs: Tensor) -> None:
    model(inputs).sum().backward()


def test_a_model_with_inputs_and_perhaps_a_step():
    assert (built_model_of((MODEL, X), "a:b").subject, built_model_of((MODEL, X), "a:b").step) == (MODEL, None)
    assert built_model_of((MODEL, X, step), "a:b").step is step


def test_names_instead_of_places():
    assert built_model_of({"model": MODEL, "inputs": X, "step": step}, "a:b").step is step
    assert built_model_of(Case(MODEL, (X,)), "a:b").inputs == (X,)
    assert built_model_of(Narrow(MODEL, X), "a:b").inputs is X


def test_a_list_of_inputs_are_positional_arguments():
    assert built_model_of((MODEL, [X]), "a:b").inputs == (X,)


def test_a_step_without_arguments_needs_no_inputs():
    assert built_model_of(lambda: None, "a:b").inputs is None


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (MODEL, "without inputs"), (3, "returns a int"), (None, "returns a NoneType"),
        ({"model": MODEL}, "no model with"), ({}, "no model with"), ((MODEL, X, 3), "cannot be called"),
    ],
)  # fmt: skip
def test_another_result_of_a_factory_is_refused_with_a_reason(returned: object, said: str):
    with pytest.raises(NoSubject, match=said):
        built_model_of(returned, "a:b")


def test_a_factory_is_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "af_factory_of_a_test.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(2, 3), torch.ones(1, 2)\n"
        "def needy(a): ...\ndef broken():\n    import no_such_module_anywhere\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load("af_factory_of_a_test:make").name == "af_factory_of_a_test:make"
    assert load("af_factory_of_a_test.py:make").subject.out_features == 3  # type: ignore[union-attr]
    with pytest.raises(NoSubject, match="has no 'other'"):
        load("af_factory_of_a_test:other")
    with pytest.raises(NoSubject, match="without arguments"):
        load("af_factory_of_a_test:needy")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        load("af_factory_of_a_test:broken")
    with pytest.raises(NoSubject, match="No module 'af_not_there'"):
        load("af_not_there:make")
    with pytest.raises(NoSubject, match="names no factory"):
        load("af_factory_of_a_test")
    with pytest.raises(NoSubject, match="There is no file"):
        load("missing.py:make")
