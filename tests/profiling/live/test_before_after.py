"""optimize(model, inputs, profile=True): the model is optimized, and its report contains the measured gain."""

import pytest
import torch

import autofuse
from autofuse.demo import gpt
from autofuse.fx.install.dispatch import is_installed

QUICK = {"steps": 2, "warmup": 1, "traced": 1, "probe": False, "pairs": 2, "progress": False}


@pytest.fixture(scope="module")
def optimized():
    torch.manual_seed(0)
    model = gpt.GPT(gpt.Config(vocab_size=16, block_size=32, n_layer=1, n_head=2, n_embd=32))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    given = torch.zeros(2, 32, dtype=torch.long)
    return autofuse.optimize(model, given, tune=False, profile=QUICK), weights


def test_the_model_is_optimized_and_its_numbers_are_as_they_were(optimized):
    model, weights = optimized
    assert is_installed(model.h[0].attn)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_report_has_both_profiles_and_the_comparison(optimized):
    found = autofuse.report(optimized[0]).profile
    assert found.comparison.pairs == 2
    assert found.before.flops.model == found.after.flops.model


def test_places_have_what_was_predicted_and_what_was_measured(optimized):
    found = autofuse.report(optimized[0]).profile
    attention = {p.rule: p for p in found.before.layer("h.0.attn").places}["AF101"]
    assert attention.status == "fused"
    assert None not in (attention.seconds, attention.predicted_seconds, attention.measured_seconds)


def test_without_profile_there_is_none():
    model = gpt.NewGELU()
    autofuse.optimize(model, torch.ones(2, 8), tune=False)
    assert autofuse.report(model).profile is None


def test_without_inputs_there_is_nothing_to_profile():
    with pytest.raises(ValueError, match="example inputs"):
        autofuse.optimize(gpt.NewGELU(), profile=True)


@pytest.mark.parametrize(("given", "said"), [({"stpes": 3}, "no option stpes.*steps"), (3, "it was a int")])
def test_unknown_options_are_reported_before_the_model_changes(given: object, said: str):
    model = gpt.NewGELU()
    with pytest.raises(TypeError, match=said):
        autofuse.optimize(model, torch.ones(2, 8), profile=given)
    assert not is_installed(model)
