"""autofuse.ir.rows and the rows of the vocabulary: what a row states about torch is true."""

from __future__ import annotations

import importlib
import inspect

import pytest
import torch
from torch import nn

from autofuse import ops
from autofuse.ir.rows import REQUIRED, activation, add_fused_activations, module_classes, operation, same_sizes
from autofuse.ir.vocabulary import ACTIVATIONS, GATES, MODULES, OPS, OTHER_ACTIVATIONS, OUR_ACTIVATIONS

X = torch.linspace(0.5, 3.0, 24).view(2, 3, 4)
NAMED = {**ACTIVATIONS, **{name: OPS[name] for name in GATES}}


def test_a_row_is_parsed_from_its_signature() -> None:
    op = operation("scale(input, by=2, mode='up')", "torch.scale .scale *")
    assert op.parameters == {"input": REQUIRED, "by": 2, "mode": "up"} and op.options == (("by", 2), ("mode", "up"))
    assert op.names == ("torch.scale", ".scale", "*") and op.last_names == {"scale"}
    assert not op.keeps_sizes and same_sizes("neg(input)", "torch.neg").keeps_sizes


def test_an_activation_in_autofuse_ops_has_a_second_row_for_that_call() -> None:
    rows = (activation("bend(input, by=1)", "torch.bend autofuse.ops.bend", "Bend", inplace=True),)
    plain, fused = add_fused_activations(rows)
    assert (plain.name, plain.names, plain.inplace) == ("bend", ("torch.bend",), True)
    assert (fused.name, fused.names, fused.options) == ("fused_bend", ("autofuse.ops.bend",), (("by", 1),))
    assert fused.keeps_sizes and not fused.inplace
    assert module_classes((plain, fused)).keys() == {"torch.nn.Bend"}


@pytest.mark.parametrize("name", NAMED)
def test_the_module_of_a_row_has_its_parameters_and_computes_the_same(name: str) -> None:
    op = NAMED[name]
    kind = getattr(nn, op.module)
    named = {k: p for k, p in inspect.signature(kind).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    taken = {k: p.default for k, p in named.items() if k != "inplace"}
    assert taken == dict(MODULES[f"torch.nn.{op.module}"].fixed) == dict(op.options)
    assert ("inplace" in named) == op.inplace
    folder, _, function = op.names[0].rpartition(".")
    assert torch.equal(kind()(X), getattr(importlib.import_module(folder), function)(X))


@pytest.mark.parametrize("name", OUR_ACTIVATIONS)
def test_an_activation_in_autofuse_ops_has_the_parameters_of_its_row(name: str) -> None:
    (_, *options) = inspect.signature(getattr(ops, name)).parameters.values()
    assert [(p.name, p.default) for p in options] == list(OUR_ACTIVATIONS[name].options)


@pytest.mark.parametrize("function, module", OTHER_ACTIVATIONS.items())
def test_the_other_activations_exist_in_torch(function: str, module: str) -> None:
    assert torch.equal(getattr(nn, module)()(X), getattr(nn.functional, function)(X))
