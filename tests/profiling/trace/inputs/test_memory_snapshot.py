"""Snapshots of torch's CUDA allocator, created here in the form that `torch.cuda.memory._snapshot` documents."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from autofuse.profiling.trace.inputs.memory_snapshot import snapshot_of
from autofuse.profiling.trace.trace import Unreadable

FORWARD = [
    {"filename": "/site/torch/nn/functional.py", "line": 1, "name": "gelu"},
    {"filename": "/home/me/model.py", "line": 12, "name": "forward"},
    {"filename": "/site/torch/nn/modules/module.py", "line": 1500, "name": "_call_impl"},
]
OPTIMIZER = [{"filename": "/site/torch/optim/adamw.py", "line": 3, "name": "_init_group"}]
MOVED = [{"filename": "/site/torch/nn/modules/module.py", "line": 900, "name": "_apply"}]


def block(size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"size": size, "requested_size": size, "state": state, "frames": frames}


def snapshot() -> dict[str, Any]:
    """100 of parameters and 200 of states stay; 300 of activations and 50 without an owner were freed again."""
    states = block(200, "active_allocated", OPTIMIZER)
    segment = {
        "device": 0, "address": 1000, "total_size": 1024,
        "blocks": [block(100, "active_allocated", MOVED), block(300, "inactive", []), states],
    }  # fmt: skip
    events = [
        {"action": "alloc", "addr": 1100, "size": 300, "stream": 0, "frames": FORWARD},
        {"action": "alloc", "addr": 1700, "size": 50, "stream": 0, "frames": []},
        {"action": "free_requested", "addr": 1100, "size": 300, "frames": FORWARD},
        {"action": "free_completed", "addr": 1100, "size": 300, "frames": FORWARD},
        {"action": "free_completed", "addr": 1700, "size": 50, "frames": []},
        {"action": "alloc", "addr": 1400, "size": 200, "stream": 0, "frames": OPTIMIZER},
    ]
    return {"segments": [segment], "device_traces": [events]}


def written(path: Path, content: Any) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path


def test_the_peak_is_found_backwards_from_the_end(tmp_path: Path) -> None:
    found = snapshot_of(written(tmp_path / "a.pickle", snapshot()))
    memory = found.memory
    assert (memory.peak_bytes, memory.parameters, memory.activations, memory.others) == (450, 100, 300, 50)
    assert memory.optimizer == 0  # its state was made later
    assert any("model.py:12 (forward)" in note for note in found.notes)
    assert any("cached or fragmented" in note for note in found.notes)


def test_without_history_it_is_what_is_there_at_the_end(tmp_path: Path) -> None:
    found = snapshot_of(written(tmp_path / "a.pickle", {**snapshot(), "device_traces": [[]]}))
    assert (found.memory.peak_bytes, found.memory.parameters, found.memory.optimizer) == (300, 100, 200)
    assert any("_record_memory_history" in note for note in found.notes)


def test_an_out_of_memory_error_is_reported(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"][0].append({"action": "oom", "addr": 0, "size": 10**9, "device_free": 5, "frames": []})
    assert any("ran out 1 time" in note for note in snapshot_of(written(tmp_path / "a.pickle", content)).notes)


class Malicious:
    """A request that a pickle may contain."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({**snapshot(), "more": Malicious()}, protocol))
    with pytest.raises(Unreadable, match="plain data only"):
        snapshot_of(path)
    assert not Path("executed").exists()


@pytest.mark.parametrize("content", [b"\x80\x04", b"\x80\x04]\x94.", b"\x80\x04K\x01.", b"\x80\x04}\x94."])
def test_a_file_that_is_not_a_snapshot_is_refused_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    with pytest.raises(Unreadable):
        snapshot_of(path)
