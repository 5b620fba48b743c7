"""Files of all kinds together. Their first bytes show their kind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from autofuse.profiling.trace.inputs.files import inputs_of
from autofuse.profiling.trace.profile import profile_of_inputs
from autofuse.profiling.trace.trace import Unreadable
from autofuse.results.profile import Profile
from tests.profiling.trace.inputs.test_dcgm_text import TEXT
from tests.profiling.trace.inputs.test_memory_snapshot import snapshot, written
from tests.profiling.trace.inputs.test_nsight_systems import export
from tests.profiling.trace.inputs.test_rocprof import content, dispatch


def test_a_trace_a_snapshot_and_counters_make_one_profile(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.txt"
    metrics.write_text(TEXT)
    paths = [export(tmp_path / "report"), written(tmp_path / "memory", snapshot()), metrics]
    profile = profile_of_inputs(inputs_of(paths))
    assert profile.level("busy").value == pytest.approx(0.6)
    assert profile.level("sm_active").value == pytest.approx(0.6) and profile.power.watts == 400.5
    assert profile.memory.peak_bytes == 450
    assert any("model.py:12" in note for note in profile.notes)
    assert Profile.from_dict(json.loads(profile.to_json())) == profile


def test_a_snapshot_alone_is_a_profile_without_a_step(tmp_path: Path) -> None:
    profile = profile_of_inputs(inputs_of([written(tmp_path / "memory", snapshot())]))
    assert profile.memory.activations == 300 and profile.timing.seconds == () and profile.diagnosis is None
    assert "450 B" in str(profile)


def test_rocprof_and_kineto_are_distinguished_by_content(tmp_path: Path) -> None:
    path = tmp_path / "results.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content(kernel_dispatch=[dispatch(0, 10)])).encode()))
    (found,) = inputs_of([path]).traces
    assert found.of("kernel")[0].duration == 10


def test_counters_by_themselves_are_no_profile(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.txt"
    metrics.write_text(TEXT)
    with pytest.raises(Unreadable, match="pass the trace"):
        profile_of_inputs(inputs_of([metrics]))


def test_an_unknown_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "nothing.json"
    path.write_text('{"rocprofiler-sdk-tool": []}')
    with pytest.raises(Unreadable, match="no process"):
        inputs_of([path])
