"""Every spelling through `optimize`: it is found, results do not change, and look-alikes are left alone."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import autofuse
from autofuse.ir.vocabulary import OUR_ACTIVATIONS
from tests.spellings.harness import (
    LOOKALIKES,
    SPELLED,
    Case,
    Spelling,
    arguments,
    assert_as_exact,
    assert_same_on_average,
    cases,
    double,
    each,
    each_but_not_yet,
    example,
    functions_called_by,
    results,
)
from tests.spellings.not_yet import NOT_YET

pytestmark = pytest.mark.spellings  # all but tests/spellings/by_night.txt run by day
OPERATIONS = {
    "AF101": {"attention", "of_all", "of_kept"},  # the latter two are made by settled_attention
    "AF102": {"masked_softmax"},
    "AF201": {"layer_norm"},
    "AF202": {"rms_norm"},
    "AF203": {"dropout_add_norm"},
    "AF301": {"gelu"},
    "AF302": {"silu"},
    "AF303": {"gated_mlp", "gated_activation", "gated_product"},
    "AF304": {"mlp"},
    "AF305": {"mish"},
    "AF306": {"hardswish"},
    "AF307": {"glu"},
    "AF308": {"softplus"},
    "AF401": {"rotary"},
    "AF402": {"rotary"},
    "AF501": {"cross_entropy"},
    "AF502": {"linear_cross_entropy", "linear_divergence", "linear_entropy", "linear_logsumexp"},
}
BFLOAT16 = {
    "NanoGpt", "T5Attention", "HuggingFaceRmsNorm", "LlamaRmsNorm", "BertSelfAttention", "AddedToFloatScores",
    "WhisperAttention", "FilledWithMinimumOfDtype", "LayerNormInFloat32", "GemmaRmsNorm", "VarianceBiased",
    "FloatFirst", "PreNormWithDropout", "SwigluOfLlama", "MlpOfVit", "TanhPow", "ErfHalfFirst", "BertOutput",
    "InFloat32CastBackToQuery", "BothBySqrtOfSqrt",
}  # fmt: skip


@cache
def optimize_spelling(s: Spelling, given: bool = True, p: float = 0.0) -> nn.Module:
    """The spelling after optimize with the example, with or without optional arguments."""
    return autofuse.optimize(s.module(p=p), arguments(s, example(s, given)))


def fused_codes(module: nn.Module) -> list[str]:
    return [site.rule for site in autofuse.report(module).sites if site.status == "fused"]


@each_but_not_yet("live", SPELLED)
def test_a_spelling_is_found_and_runs_fused_in_every_size(spelling: Spelling) -> None:
    for given in {True, not spelling.optional}:
        module = optimize_spelling(spelling, given)
        told = str(autofuse.report(module))
        assert fused_codes(module).count(spelling.rule) >= spelling.asks("sites", 1), told
        assert {*fused_codes(module)} <= {spelling.rule, *spelling.asks("also", ())}, told
        for case in cases(spelling):
            assert runs_fused(spelling, module, case), f"{case}: the original ran"


def runs_fused(s: Spelling, module: nn.Module, case: Case) -> bool:
    folder = str(Path(autofuse.__file__).parent / "ops")
    args = arguments(s, case)
    for training in (True, False):
        module.train(training)
        ran = functions_called_by(lambda: module(*args))  # torch's own functions have no file
        found = {
            name.removeprefix("_seen_")
            for name, file in ran
            if file.startswith(folder) or not file and name in OUR_ACTIVATIONS
        }
        if not found & OPERATIONS[s.rule]:
            return False
    return True


@each(SPELLED)
def test_numbers_stay_in_training_and_evaluation(spelling: Spelling) -> None:
    for given in {True, not spelling.optional}:
        for case in cases(spelling):
            assert_agree(spelling, optimize_spelling(spelling, given), case)


def assert_agree(s: Spelling, fused: nn.Module, case: Case, dtype: torch.dtype = torch.float32) -> None:
    args = arguments(s, case, dtype)
    for training in (False,) if s.asks("random") else (True, False):
        truth = results(s.module(dtype=torch.float64), double(args), training)
        original = results(s.module(dtype=dtype), args, training)
        mode = "in training" if training else "in evaluation"
        assert_as_exact(s, truth, original, results(fused, args, training), f"{s.name}, {case}, {mode}")


@each(tuple(s for s in SPELLED if s.asks("fills")))
def test_a_row_that_keeps_no_key_stays_as_a_finite_fill_has_it(spelling: Spelling) -> None:
    case = replace(example(spelling), rows_dropped=True)
    assert_agree(spelling, optimize_spelling(spelling), case)
    assert_agree(spelling, autofuse.optimize(spelling.module(), arguments(spelling, case)), case)


@each(tuple(s for s in SPELLED if s.name in BFLOAT16))
def test_results_in_bfloat16_stay(spelling: Spelling) -> None:
    args = arguments(spelling, example(spelling), torch.bfloat16)
    fused = autofuse.optimize(spelling.module(dtype=torch.bfloat16), args)
    if ("live", spelling.name) not in NOT_YET:
        assert spelling.rule in fused_codes(fused), str(autofuse.report(fused))
    for case in cases(spelling)[:2]:
        assert_agree(spelling, fused, case, torch.bfloat16)


@each(tuple(s for s in SPELLED if s.drops or s.asks("random")))
def test_dropout_stays_what_it_is_on_average(spelling: Spelling) -> None:
    args = arguments(spelling, example(spelling))
    assert_same_on_average(spelling.module(p=0.3), optimize_spelling(spelling, p=0.3), args)
    evaluated = results(spelling.module(p=0.3), args, False)
    torch.testing.assert_close(results(optimize_spelling(spelling, p=0.3), args, False), evaluated)


@each(SPELLED[::5])
def test_keys_stay_and_restore_sets_the_original_class(spelling: Spelling) -> None:
    original = spelling.module()
    fused = autofuse.optimize(copy.deepcopy(original), arguments(spelling, example(spelling)))
    assert list(fused.state_dict()) == list(original.state_dict())
    assert [n for n, _ in fused.named_modules()] == [n for n, _ in original.named_modules()]
    restored = autofuse.restore(fused)
    assert [type(m) for m in restored.modules()] == [type(m) for m in original.modules()]
    args = arguments(spelling, example(spelling))
    torch.testing.assert_close(results(restored, args, False), results(original, args, False), rtol=0, atol=0)


@each_but_not_yet("live", LOOKALIKES)
def test_a_lookalike_is_left_alone(spelling: Spelling) -> None:
    for given in {True, not spelling.optional}:
        fused = autofuse.optimize(spelling.module(), arguments(spelling, example(spelling, given)))
        if not spelling.asks("numbers_only"):
            allowed = {*spelling.asks("fuses", ()), *(["AF102"] if spelling.asks("softmax_alone") else [])}
            assert {*fused_codes(fused)} <= allowed, str(autofuse.report(fused))
        assert all(site.reason for site in autofuse.report(fused).sites if site.status != "fused")
        original = spelling.module()
        for case in cases(spelling):
            if spelling.asks("random") or spelling.asks("fuses") or fused_codes(fused):
                assert_agree(spelling, fused, case)
                continue
            args = arguments(spelling, case)
            for training in (True, False):
                expected, actual = (results(m, args, training) for m in (original, fused))
                torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
