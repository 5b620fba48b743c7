"""Reads hardware counters of NVIDIA's GPUs while steps run: SM activity, occupancy, tensor, DRAM and FP pipes.

It uses `dcgmi`, the command-line tool of DCGM, which asks the host engine. Only one program can hold the counters at a
time, so no profiler and no Nsight Compute may run meanwhile.

Fields and their meaning: DCGM User Guide, "Profiling Metrics" (DCGM_FI_PROF_SM_ACTIVE and following).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import IO

from autofuse.results.ladder import Level

FIELDS = {
    1002: "sm_active",
    1003: "sm_occupancy",
    1004: "tensor_active",
    1005: "dram_active",
    1006: "fp64_active",
    1007: "fp32_active",
    1008: "fp16_active",
}
MILLISECONDS = 100  # between readings: the counters are read about ten times a second

_PATIENCE = 20.0  # seconds for the tool to answer or to end
_ROW = re.compile(r"^\s*(?:GPU|GPU-I)\s+(\d+)\s+(.*)$")
_GPU = re.compile(r"^\|\s*(\d+)\s*\|.*$", re.MULTILINE)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{36}")


class Counters:
    """Reads the counters of one GPU during a block: `with Counters(uuid) as counters: steps()`.

    uuid: the GPU's, from torch.cuda.get_device_properties(device).uuid or NVML; "" if the machine has one GPU.
    If DCGM is missing or refuses, nothing is raised, and `levels` say why.
    """

    def __init__(self, uuid: str = "") -> None:
        self._uuid = uuid if not uuid or "-" not in uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        self._process: subprocess.Popen[str] | None = None
        self._output: IO[str] | None = None
        self._errors: IO[str] | None = None
        self._printed = ""
        self.reason = "nothing was measured yet"

    def __enter__(self) -> Counters:
        tool = shutil.which("dcgmi")
        if tool is None:
            self.reason = "dcgmi is not on this machine's PATH: install NVIDIA's Data Center GPU Manager and start it"
            return self
        number = self._dcgm_number(tool)
        if number is None:
            return self
        fields = ",".join(map(str, FIELDS))
        self._output, self._errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [tool, "dmon", "-i", str(number), "-e", fields, "-d", str(MILLISECONDS)],
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._errors, text=True,
        )  # fmt: skip
        self.reason = ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        ended_early = self._process.poll() is not None
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed, errors = _text_of_file(self._output), _text_of_file(self._errors)
        if ended_early:
            self.reason = _refusal(errors or self._printed)

    def levels(self) -> dict[str, Level]:
        """Return a level for each field, after the block: the mean of its readings, or why there is none."""
        readings = [] if self.reason else _readings(self._printed)
        found = {}
        for at, (field, name) in enumerate(FIELDS.items()):
            values = [value for row in readings if (value := row[at]) is not None]
            if values:
                basis = f"DCGM field {field}, {len(values)} readings {MILLISECONDS} ms apart"
                found[name] = Level(name, fmean(values), basis)
            else:
                found[name] = Level(name, reason=self.reason or _missing_value_reason(readings, field))
        return found

    def _dcgm_number(self, tool: str) -> int | None:
        """DCGM's number of the GPU. CUDA's number differs from it if CUDA_VISIBLE_DEVICES hides some GPUs."""
        try:
            listed = subprocess.run([tool, "discovery", "-l"], capture_output=True, text=True, timeout=_PATIENCE)
        except (OSError, subprocess.TimeoutExpired) as error:
            self.reason = f"dcgmi does not answer ({error})"
            return None
        if listed.returncode:
            self.reason = _refusal(listed.stderr.strip() or listed.stdout)
            return None
        gpus = gpu_numbers(listed.stdout)
        if self._uuid in gpus:
            return gpus[self._uuid]
        if not self._uuid and len(gpus) == 1:
            return next(iter(gpus.values()))
        self.reason = f"DCGM does not know the GPU {self._uuid or '(none was named)'}; it knows {len(gpus)} others"
        return None


def gpu_numbers(listing: str) -> dict[str, int]:
    """Return the GPUs' numbers by UUID from `dcgmi discovery -l`, a table whose first column is the number."""
    found: dict[str, int] = {}
    number = None
    for line in listing.splitlines():
        row = _GPU.match(line)
        number = int(row[1]) if row else number
        uuid = _UUID.search(line)
        if uuid and number is not None:
            found.setdefault(uuid[0], number)
    return found


def _readings(printed: str) -> list[Sequence[float | None]]:
    """Return the rows of `dcgmi dmon` without the first, which refers to the time before the start."""
    rows = []
    for line in printed.splitlines():
        row = _ROW.match(line)
        cells = row[2].split() if row else ()
        if len(cells) == len(FIELDS):
            rows.append([_fraction_in_cell(cell) for cell in cells])
    return list(rows[1:])


def _fraction_in_cell(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def _missing_value_reason(readings: Sequence[Sequence[float | None]], field: int) -> str:
    if not readings:
        return f"DCGM gave no reading: the steps took less than about {2 * MILLISECONDS} ms"
    return f"DCGM has no value of field {field} on this GPU"


def _refusal(said: str) -> str:
    """Return the tool's error on one line. The tool prints it on either stream."""
    return f"dcgmi refused: {' '.join(said.split())[:200].rstrip('.') or 'it said nothing'}"


def _text_of_file(file: IO[str] | None) -> str:
    if file is None:
        return ""
    with file:
        file.seek(0)
        return file.read()
