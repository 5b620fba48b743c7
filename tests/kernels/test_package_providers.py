"""Removing, breaking or shadowing a package changes nothing but the choice, and the reason is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autofuse.kernels import package_providers as others
from autofuse.kernels.operation import OPERATIONS
from tests.kernels.standins import build

REPOSITORY = Path(__file__).parents[2]
_RAISES = "raise OSError('libcudart.so.12: cannot open shared object file')\n"


def _report(folder: Path) -> Any:
    """The output of tests/kernels/report_of_choices.py with `folder` first on the path."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]), "OMP_NUM_THREADS": "1",
        "AUTOFUSE_PROVIDERS": "apex,flash-attn,liger,quack",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.kernels.report_of_choices"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def without_any(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders with the packages' names but other contents, which count as absent wherever the tests run."""
    folder = tmp_path_factory.mktemp("absent")
    for name in ("apex", "flash_attn", "liger_kernel", "quack", "triton"):
        (folder / f"{name}.py").write_text(_RAISES, encoding="utf-8")
    return _report(folder)


def test_another_package_of_the_same_name_is_not_imported_and_the_reason_is_reported(without_any: Any) -> None:
    assert without_any["imported"] == []
    for found in without_any["operations"].values():
        assert found["took"] == ["torch"]
        for reason in found["refusals"].values():
            assert "is not" in reason or "has no kernels" in reason


def test_available_packages_compute_the_same_results(tmp_path: Path, without_any: Any) -> None:
    build(tmp_path)
    report = _report(tmp_path)
    assert report["digest"] == without_any["digest"]
    for found in report["operations"].values():
        assert len(found["took"]) == 1 and found["took"] != ["torch"]
    assert {"apex", "quack"} & set(report["imported"]) <= {"apex"}  # the first that takes a call is loaded, no other


def test_packages_that_fail_to_import_change_only_the_choice(tmp_path: Path, without_any: Any) -> None:
    build(tmp_path)
    for name in ("apex", "flash_attn", "liger_kernel", "quack"):
        (tmp_path / name / "__init__.py").write_text(_RAISES, encoding="utf-8")
    report = _report(tmp_path)
    assert report["digest"] == without_any["digest"]
    assert report["imported"] == []
    for found in report["operations"].values():
        assert found["took"] == ["torch"]
        assert all("cannot be imported: OSError: libcudart" in reason for reason in found["refusals"].values())


def test_packages_with_other_functions_change_only_the_choice(tmp_path: Path, without_any: Any) -> None:
    build(tmp_path)
    for file in tmp_path.rglob("__init__.py"):
        text = file.read_text(encoding="utf-8")
        renamed = text.replace("def layer_norm_fn(", "def norm_fn(").replace("class FusedL", "class L")
        moved = renamed.replace("weight, ", "gain, ").replace("(ctx, X, ", "(ctx, rows, ").replace("labels, ", "tags, ")
        file.write_text(moved.replace("(x, target, ", "(x, wanted, "), encoding="utf-8")
    report = _report(tmp_path)
    assert report["digest"] == without_any["digest"]
    for found in report["operations"].values():
        for name, reason in found["refusals"].items():
            assert name in found["took"] or " is expected." in reason or " has no " in reason, (name, reason)


@pytest.mark.parametrize("x", [torch.ones(()), torch.ones(0, 8), torch.ones(4, 8).to_sparse()])
def test_a_check_never_raises_on_operands_that_no_kernel_takes(x: torch.Tensor) -> None:
    for operation, args in (
        ("rms_norm", (x, None)), ("rotary", (x, x, x)), ("attention", (x, x, x)), ("cross_entropy", (x, x.long())),
        ("mlp", (x, x, None, x, None)), ("gated_product", (x, x)), ("masked_softmax", (x,)),
    ):  # fmt: skip
        for provider in others.PROVIDERS:
            if provider.operation == operation:
                assert provider.check(*args).startswith("It needs ")


def test_every_provider_of_other_packages_is_added_once_and_is_not_a_default() -> None:
    before = {name: operation.providers for name, operation in OPERATIONS.items()}
    others.offer()
    assert {name: operation.providers for name, operation in OPERATIONS.items()} == before
    for provider in others.PROVIDERS:
        assert not provider.default
        assert provider.devices == ("cuda",)
        if provider.operation in OPERATIONS:
            assert provider in OPERATIONS[provider.operation].providers
