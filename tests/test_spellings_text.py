"""Every spelling through `autofuse rewrite`: the file is rewritten, imported, and compared with the original."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import nn

from autofuse.cli import main
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
    module_at,
    results,
)
from tests.spellings.not_yet import NOT_YET

pytestmark = pytest.mark.spellings  # all but tests/spellings/by_night.txt run by day
ATTENTION = ("attention", "scaled_dot_product_attention")
FUNCTIONS = {
    "AF101": ("scaled_dot_product_attention",),
    "AF102": ("masked_softmax",),
    "AF201": ("layer_norm",),
    "AF202": ("rms_norm",),
    "AF203": ("dropout_add_norm",),
    "AF301": ("gelu",),
    "AF302": ("silu",),
    "AF303": ("gated_mlp", "gated_activation", "gated_product"),
    "AF304": ("mlp",),
    "AF305": ("mish",),
    "AF306": ("hardswish",),
    "AF307": ("glu",),
    "AF308": ("softplus",),
    "AF401": ("rotary",),
    "AF402": ("rotary",),
    "AF501": ("cross_entropy",),
    "AF502": ("linear_cross_entropy", "linear_divergence", "linear_entropy", "linear_logsumexp"),
}
BFLOAT16 = {"NanoGpt", "BertSelfAttention", "FilledWithMinimumOfDtype", "FilledWithABillion", "VarianceBiased"}
AUTOFUSE_ONLY = {"AF102", "AF203", "AF303", "AF304", "AF401", "AF402"}  # torch has no such operation
SAFE = tuple(s for s in SPELLED if s.through("text") and s.asks("safety") != "unsafe" and s.rule not in AUTOFUSE_ONLY)


@cache
def rewritten(text: str, *options: str) -> str:
    """The result of `autofuse rewrite` with `options` for a file with `text`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(text)
        assert main(["rewrite", *options, str(path)]) == 0
        return path.read_text()


class File:
    """A spelling in a separate file."""

    def __init__(self, spelling: Spelling, folder: Path) -> None:
        self.spelling, self.path = spelling, folder / "model.py"
        self.text = spelling.text()

    def rewritten(self, *options: str) -> str:
        """The text after `autofuse rewrite` with `options`."""
        return rewritten(self.text, *options)

    def module(self, text: str, dtype: torch.dtype = torch.float64, p: float = 0.0) -> nn.Module:
        """The class as `text` has it."""
        self.path.write_text(text)
        return self.spelling.module(getattr(module_at(self.path), self.spelling.name), dtype, p)


@pytest.fixture
def file(spelling: Spelling, tmp_path: Path) -> File:
    return File(spelling, tmp_path)


def is_fused(s: Spelling, text: str) -> bool:
    """Whether `text` calls the rule's function more often than the original does."""
    before = s.text()
    return any(text.count(f"{name}(") > before.count(f"{name}(") for name in FUNCTIONS[s.rule])


@each_but_not_yet("text", tuple(s for s in SPELLED if s.through("text")))
def test_a_file_is_rewritten_and_what_it_calls_is_fused(spelling: Spelling, file: File) -> None:
    text = file.rewritten("--unsafe")
    assert is_fused(spelling, text), text
    module, args = file.module(text, torch.float32), arguments(spelling, example(spelling))
    names = {name for name, _ in functions_called_by(lambda: module(*args))}
    assert names & {*FUNCTIONS[spelling.rule]}, text


@each_but_not_yet("safe", SAFE)
def test_a_spelling_that_the_text_proves_is_rewritten_with_a_safe_edit(spelling: Spelling, file: File) -> None:
    text = file.rewritten()
    assert is_fused(spelling, text), text


@each(SPELLED)
def test_rewritten_code_computes_the_same_in_every_size(spelling: Spelling, file: File) -> None:
    for text in {file.rewritten("--unsafe"), file.rewritten()} - {file.text}:
        for case in cases(spelling):
            if spelling.single:
                assert_agree_in(torch.float32, spelling, text, file.module(text, torch.float32), case)
            else:
                assert_agree(spelling, file.module(text), case, text)


@each(tuple(s for s in SPELLED if s.single or s.name in BFLOAT16))
def test_rewritten_code_computes_the_same_in_bfloat16(spelling: Spelling, file: File) -> None:
    text = file.rewritten("--unsafe")
    if text != file.text:
        module = file.module(text, torch.bfloat16)
        assert_agree_in(torch.bfloat16, spelling, text, module, example(spelling))


def assert_agree(s: Spelling, rewritten: nn.Module, case: Case, text: str) -> None:
    """In double precision, results may differ only by rounding, and by the error of rounded constants."""
    args = double(arguments(s, case))
    for training in (False,) if s.asks("random") else (True, False):
        expected, actual = (results(m, args, training) for m in (s.module(dtype=torch.float64), rewritten))
        assert expected.keys() == actual.keys(), text
        largest = max(float(t.abs().max()) for t in expected.values())
        for name, exact in expected.items():
            assert actual[name].shape == exact.shape and actual[name].dtype == exact.dtype, (name, text)
            off = float((actual[name] - exact).abs().max())
            allowed = (4 * s.asks("digits", 0.0) + 1e-11) * largest
            assert off <= allowed, f"{case}, training {training}: {name} is off by {off:.1e}\n{text}"


def assert_agree_in(dtype: torch.dtype, s: Spelling, text: str, rewritten: nn.Module, case: Case) -> None:
    args = arguments(s, case, dtype)
    for training in (False,) if s.asks("random") else (True, False):
        truth = results(s.module(dtype=torch.float64), double(args), training)
        original = results(s.module(dtype=dtype), args, training)
        assert_as_exact(s, truth, original, results(rewritten, args, training), f"{case}\n{text}")


@each(tuple(s for s in SPELLED if s.asks("fills")))
def test_a_safe_rewrite_keeps_rows_that_keep_no_key(spelling: Spelling, file: File) -> None:
    text = file.rewritten()
    if text == file.text:
        return
    args = arguments(spelling, replace(example(spelling), rows_dropped=True))
    for training in (True, False):
        truth = results(spelling.module(dtype=torch.float64), double(args), training)
        original = results(spelling.module(), args, training)
        actual = results(file.module(text, torch.float32), args, training)
        assert_as_exact(spelling, truth, original, actual, text)


@each(SPELLED)
def test_a_second_rewrite_changes_nothing(spelling: Spelling, file: File) -> None:
    first = file.rewritten("--unsafe")
    assert rewritten(first, "--unsafe") == first


@each(tuple(s for s in SPELLED if s.drops or s.asks("random")))
def test_dropout_stays_what_it_is_on_average(spelling: Spelling, file: File) -> None:
    args = arguments(spelling, example(spelling))
    module = file.module(file.rewritten("--unsafe"), torch.float32, 0.3)
    assert_same_on_average(spelling.module(p=0.3), module, args)


@each(tuple(s for s in SPELLED if s.rule in AUTOFUSE_ONLY))
def test_an_operation_that_torch_lacks_is_unsafe_and_only_reported_for_the_target_torch(
    spelling: Spelling, file: File, capsys: pytest.CaptureFixture[str]
) -> None:
    file.path.write_text(file.text)
    for options, statuses in (((), {"unsafe", "report"}), (("--target", "torch"), {"report"})):
        main(["check", "--format", "json", *options, str(file.path)])
        found = json.loads(capsys.readouterr().out)["findings"]
        assert {f["status"] for f in found if f["code"] == spelling.rule} <= statuses
    if ("text", spelling.name) not in NOT_YET:
        assert any(f["code"] == spelling.rule for f in found), found


@each_but_not_yet("text", tuple(s for s in LOOKALIKES if s.through("text")))
def test_a_lookalike_is_left_alone(spelling: Spelling, file: File) -> None:
    for options in ((), ("--target", "autofuse")):
        text = file.rewritten("--unsafe", *options)
        if spelling.asks("softmax_alone"):
            assert not any(text.count(f"{name}(") > file.text.count(f"{name}(") for name in ATTENTION)
        elif not spelling.asks("numbers_only"):
            assert text == file.text
        if text != file.text and not spelling.asks("random"):
            module = file.module(text)
            for case in cases(spelling):
                assert_agree(spelling, module, case, text)
