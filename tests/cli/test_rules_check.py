"""Tests of `autofuse rules --check`: it runs the examples of the user's own rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.cli.dispatch import main
from autofuse.cli.output import DONE, FAILED, FINDINGS

RULE = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from autofuse.rule import Fused, Kept, Rule

if TYPE_CHECKING:
    import torch
    from a_package_that_is_not_here import fast


class Sines(Rule):
    """A sine of an exponential."""

    code = "MY101"

    @staticmethod
    def before(x):
        return torch.sin(torch.exp(x))

    @staticmethod
    def after(x):
        return fast(x)

    examples = (
        Fused("as methods", before="import torch\\ndef f(x): return x.exp().sin()", after="EXPECTED"),
        Kept("a cosine", "import torch\\ndef f(x): return torch.cos(torch.exp(x))"),
    )
'''


def check_rules(folder: Path, text: str) -> int:
    (folder / "mine.py").write_text(text)
    return main(["rules", "--check", str(folder)])


def test_rules_with_correct_examples_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_rules(tmp_path, RULE.replace("EXPECTED", "fast(x)")) == DONE
    printed = capsys.readouterr().out
    assert "MY101  Sines: 1 rewritten, 1 left alone" in printed
    assert "a_package_that_is_not_here cannot be imported here" in printed


def test_a_failing_example_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_rules(tmp_path, RULE.replace("EXPECTED", "slow(x)")) == FINDINGS
    assert "`slow(x)` is not in the result" in capsys.readouterr().out


def test_an_invalid_rule_gives_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_rules(tmp_path, RULE.replace("torch.exp(x))\n\n    @", "torch.fft.fft(x))\n\n    @")) == FAILED
    assert "Sines.before uses torch.fft.fft, which is not in the vocabulary" in capsys.readouterr().err


def test_a_folder_without_rules_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--check", str(tmp_path)]) == FAILED
    assert "no rules of its own" in capsys.readouterr().err


def test_a_function_missing_from_its_package_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = RULE.replace("from a_package_that_is_not_here import fast", "import torch.nn.functional as F")
    assert (
        check_rules(tmp_path, text.replace("return fast(x)", "return F.sofplus(x)").replace("EXPECTED", "")) == FINDINGS
    )
    assert "Sines.after uses torch.nn.functional.sofplus, which cannot be imported" in capsys.readouterr().out


def test_a_rule_without_unchanged_example_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example_line = next(
        line for line in RULE.splitlines() if "Kept(" in line and "import" not in line.split("Kept(")[0]
    )
    assert check_rules(tmp_path, RULE.replace("EXPECTED", "fast(x)").replace(example_line, "")) == FINDINGS
    assert "Sines has no example of code that it must not change" in capsys.readouterr().out
