"""No advice names hardware that the trace does not have."""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.profile import profile_of_traces
from tests.profiling.trace.causes import CAUSES, job, trace_of
from tests.profiling.trace.machine import Shape

NVIDIAS = ("cuda graph", "tensor core", "nvidia", "tf32", "cudamalloc", "pytorch_cuda")
AMDS = ("hip graph", "matrix core", "rocm", "amd", "hipmalloc")


def words(*traces: object) -> str:
    found = profile_of_traces(list(traces)).diagnosis  # type: ignore[arg-type]
    assert found is not None
    return " ".join([found.sentence, *(action.text + action.evidence for action in found.actions)]).lower()


@pytest.mark.parametrize("name", CAUSES)
def test_advice_for_one_makers_gpus_does_not_mention_another_makers_tools(name: str) -> None:
    for device, others in (("MI300", NVIDIAS), ("H100", AMDS)):
        said = words(trace_of(CAUSES[name], Shape(device=device)))
        assert not [word for word in others if word in said], said


def test_a_slow_gpu_is_looked_at_with_its_makers_tool() -> None:
    assert "rocm-smi" in words(*job(1, "gpu", 3, shape=Shape(device="MI300")))
    assert "nvidia-smi" in words(*job(1, "gpu", 3))
