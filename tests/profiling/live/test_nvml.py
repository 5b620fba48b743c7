"""Power from NVML, read from a stand-in for its Python package."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from autofuse.profiling.live.nvml import metered

# 300 W all the time; the energy counter gives 30 J between its first and its second reading.
PACKAGE = """\
class NVMLError(Exception):
    pass

energy = iter({energy})

def nvmlInit():
    {init}

def nvmlShutdown():
    pass

def nvmlDeviceGetHandleByUUID(name):
    if name != "GPU-1234":
        raise NVMLError("Not Found")
    return name

def nvmlDeviceGetTotalEnergyConsumption(handle):
    for joules in energy:
        return joules * 1000
    raise NVMLError("Not Supported")

def nvmlDeviceGetPowerUsage(handle):
    return 300_000
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, energy: str = "(1000, 1030)", init: str = "pass") -> None:
    (folder / "pynvml.py").write_text(PACKAGE.format(energy=energy, init=init))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


def test_energy_is_the_change_of_the_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch)
    with metered("1234") as meter:
        pass
    power = meter.power(steps=3, tokens=50)
    assert (power.joules_per_step, power.tokens_per_joule) == (10, 5)
    assert power.watts == pytest.approx(30 / meter.seconds)
    assert power.source == "NVML's energy counter"


def test_without_a_counter_power_is_read_repeatedly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, energy="()")
    with metered("GPU-1234") as meter:
        time.sleep(0.12)
    power = meter.power(steps=2)
    assert power.watts == pytest.approx(300)
    assert power.joules_per_step == pytest.approx(300 * meter.seconds / 2)
    assert power.tokens_per_joule is None


@pytest.mark.parametrize(
    "uuid, init, why",
    [("1234", "raise NVMLError('Driver Not Loaded')", "Driver Not Loaded"), ("99", "pass", "does not know the GPU")],
)
def test_a_refusal_of_nvml_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uuid: str, init: str, why: str
) -> None:
    stand_in(tmp_path, monkeypatch, init=init)
    with metered(uuid) as meter:
        pass
    assert why in meter.power(steps=1).reason


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with metered("1234") as meter:
        pass
    assert "pynvml is not installed" in meter.power(steps=1).reason
