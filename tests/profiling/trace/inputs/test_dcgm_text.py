"""The text that DCGM's exporter serves, in Prometheus' format."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.profiling.trace.inputs.dcgm_text import counters_of_text, is_dcgm_text
from autofuse.profiling.trace.trace import Unreadable

TEXT = """\
# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100",Hostname="x"} 0.5
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100",Hostname="x"} 0.7 1395066363000
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a"} 2.5e-01
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} 400.5
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-a"} 9223372036854775794
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a"} 9223372036854775794
"""


def test_levels_are_means_over_gpus_and_scrapes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(TEXT)
    assert is_dcgm_text(TEXT.encode())
    levels, power = counters_of_text(path)
    assert {name: level.value for name, level in levels.items()} == pytest.approx(
        {"sm_active": 0.6, "tensor_active": 0.25}
    )
    assert levels["sm_active"].basis == "DCGM exporter, 2 samples of 2 GPUs"
    assert power.watts == 400.5  # and a value that says "not available" is none


def test_a_text_without_the_metrics_is_refused_with_the_required_ones(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 50\n')
    with pytest.raises(Unreadable, match="DCGM_FI_PROF_SM_ACTIVE"):
        counters_of_text(path)


def test_json_that_mentions_dcgm_is_not_dcgm_text() -> None:
    assert not is_dcgm_text(b'{"traceEvents": [{"name": "DCGM_FI_PROF_SM_ACTIVE"}]}')
