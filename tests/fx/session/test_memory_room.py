"""Whether there is memory enough to check."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.session import memory_room as room
from autofuse.measure import available_memory as measured_room
from tests.fx.conftest import Gpt, assert_same


def test_a_small_module_has_room() -> None:
    assert room.lack_of_room(nn.Linear(4, 4)) == ""


def test_a_module_that_would_not_fit_is_told_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 2**30)
    with torch.device("meta"):
        large = nn.Linear(2**14, 2**14)
    assert "about 12.0 GiB of memory on meta, and 1.0 GiB are free" in room.lack_of_room(large)


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_room, "_CGROUP", tmp_path)
    cpu = torch.device("cpu")
    unlimited = measured_room.free_bytes(cpu)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert measured_room.free_bytes(cpu) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert (measured_room.free_bytes(cpu) is None) == (unlimited is None)


def test_what_cannot_be_checked_is_not_fused(tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 10)
    plain, model = Gpt(), Gpt()
    model.load_state_dict(plain.state_dict())
    autofuse.optimize(model, tokens)
    report = autofuse.report(model)
    assert not report.with_status("fused")
    told = [s for s in report if s.rule == "AF101" and s.reason.startswith("not verified: checking takes")]
    assert told and {s.reason_code for s in told} == {"not-verified"}
    assert_same(plain, model, tokens)


def test_without_room_for_the_whole_its_parts_are_checked(tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Gpt()
    whole = sum(p.numel() * 4 for p in model.parameters())
    monkeypatch.setattr(room, "free_bytes", lambda device: whole * room.COPIES)
    autofuse.optimize(model, tokens)
    report = autofuse.report(model)
    assert "AF101" in {s.rule for s in report.with_status("fused")}
    assert [s.reason for s in report if s.reason_code == "whole-not-verified"]  # buffers come on top of parameters
