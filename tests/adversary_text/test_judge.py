"""The judge of adversarial programs notices every kind of change, and ignores rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.adversary_text.judge import BrokenProgram, changes_of, verdicts
from tests.adversary_text.program import IMPORTS, Program
from tests.adversary_text.world import CONTEXTS, record_run

CALL = "f(t(2, 5))"
NOTICED = {
    "an output": ("return x * 2", "return x * 2.001", "outcome: differs"),
    "a gradient": ("return x * 2", "return x.detach() * 2 + (x - x.detach())", "gradient"),
    "a dtype": ("return x.sum().double()", "return x.sum().float()", "is Tensor torch.float32"),
    "a shape": ("return x.sum(0)", "return x.sum(0, keepdim=True)", "(1, 5)"),
    "what needs a gradient": ("return x * 2", "return x.detach() * 2", "with a gradient"),
    "strides that are read": ("return x.stride()", "return x.mT.stride()", "outcome"),
    "what is printed": ("print('a')\n    return x", "print('b')\n    return x", "prints"),
    "an exception of the program": ("raise ValueError('a')", "raise ValueError('b')", "raises ValueError: a, now"),
    "an exception that is new": ("return x", "return x.no_such", "runs, now AttributeError"),
    "an exception that is gone": ("assert x.sum() > 99, 'small'", "return x", "now runs"),
    "a warning": ("return x", "import warnings\n    warnings.warn('beware')\n    return x", "warns beware"),
    "the type of a result": ("return x.shape", "return tuple(x.shape)", "outcome"),
    "a number that was none": ("return x / x", "return x / x + (x > 0)", "outcome: differs"),
}
EXCUSED = {
    "rounding": ("return x * 3 / 7", "return x * (3 / 7)"),
    "the order of a sum": ("return x.sum()", "return x.flip(0).sum()"),
    "what was NaN": ("return x * float('nan')", "return x * 0"),
    "an error of torch's own": ("return x @ x", "return x"),
    "a warning less": ("import warnings\n    warnings.warn('beware')\n    return x", "return x"),
}


def program(body: str, drive: str = CALL) -> Program:
    return Program("judge/one", (("model.py", f"{IMPORTS}def f(x):\n    {body}\n"),), drive, raises=True)


def changes_between(before: str, after: str, folder: Path) -> list[str]:
    seen = []
    for body in (before, after):
        (folder / "model.py").write_text(program(body).text)
        seen.append([record_run(folder, CALL, c) for c in CONTEXTS])
    return changes_of(program(before), *seen)


@pytest.mark.parametrize("kind", NOTICED)
def test_a_change_is_noticed(kind: str, tmp_path: Path) -> None:
    before, after, told = NOTICED[kind]
    changes = changes_between(before, after, tmp_path)
    assert any(told in line for line in changes), changes


@pytest.mark.parametrize("kind", EXCUSED)
def test_a_harmless_difference_is_not_reported(kind: str, tmp_path: Path) -> None:
    assert not changes_between(*EXCUSED[kind], tmp_path)


def test_a_difference_in_only_one_context_is_noticed(tmp_path: Path) -> None:
    told = changes_between(
        "return (x @ x.mT) * 1", "return (x @ x.mT).float() * 1 if x.dtype is torch.float32 else x @ x.mT * 1", tmp_path
    )
    assert told and all(line.startswith("autocast:") for line in told)


def test_patches_of_torch_are_undone(tmp_path: Path) -> None:
    before = F.silu, torch.sigmoid, Tensor.mean, torch.get_default_dtype()
    patches = "F.silu = torch.sigmoid = Tensor.mean = None\n    torch.set_default_dtype(torch.float64)\n    F.mine = 3"
    (tmp_path / "model.py").write_text(program(f"{patches}\n    return x").text)
    assert not record_run(tmp_path, CALL, CONTEXTS[0]).error
    assert before == (F.silu, torch.sigmoid, Tensor.mean, torch.get_default_dtype()) and not hasattr(F, "mine")


def test_a_program_that_does_not_run_is_an_error() -> None:
    text = f"{IMPORTS}def f(x):\n    return x.no_such\n"
    with pytest.raises(BrokenProgram):
        verdicts(Program("judge/broken", (("model.py", text),), CALL))


def test_a_correct_edit_counts_as_an_edit() -> None:
    safe, unsafe = verdicts(program("x = x.abs()\n    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"))
    assert safe.outcome == "edited" and unsafe.outcome == "as safe" and "rms_norm" in safe.text


def test_a_program_without_its_required_safe_edit_is_wrong() -> None:
    one = Program("judge/safe", program("return x + 1").files, CALL, safe=True)
    assert verdicts(one)[0].outcome == "wrong"
