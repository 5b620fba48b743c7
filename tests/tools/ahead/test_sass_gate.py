"""Machine code with narrow loads, with 64-bit divisions, or worse than the record is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tools.ahead.gate import Row
from tools.ahead.launches import Launch
from tools.ahead.resources import Resources
from tools.ahead.sass import MachineCode
from tools.ahead.sass_gate import Judged, as_markdown, record, trouble, write

REPOSITORY = Path(__file__).parents[3]


def judged_kernel(
    width: int = 16, instructions: int = 80, divisions: int = 0, registers: int = 32, access: float = 6.0
) -> Judged:
    """The code of a kernel of 128 threads, each of which loads and stores 8 halves."""
    launch = Launch("kernel", "BLOCK=1024", Resources(registers, 0, 0, 4), "norm", programs=1056, tile=1024, ideal=4.0)
    counts = {width: 16 // width}
    code = MachineCode(counts, counts, instructions, instructions, divisions)
    return Judged(Row("norm", "a call", 90, launch, "", access), "norm, a call, kernel, sm_90, 1", code, 8.0)


def test_code_as_recorded_or_better_is_not_reported() -> None:
    assert trouble(judged_kernel(), judged_kernel().numbers) == "" and trouble(judged_kernel(), {}) == ""
    assert trouble(judged_kernel(instructions=83), judged_kernel().numbers) == ""  # within 5 %
    assert trouble(judged_kernel(), judged_kernel(width=8, instructions=160, registers=64).numbers) == ""


WORSE = {
    "loads of 2 bytes": (judged_kernel(width=2), "move 2.0 bytes at a time, in the mean, and 6.0 were promised"),
    "a division": (judged_kernel(divisions=2), "It divides numbers of 64 bits in 2 places."),
    "more instructions": (
        judged_kernel(instructions=120),
        "It takes 15.0 instructions for an entry, and 10.0 are recorded.",
    ),
    "more registers": (judged_kernel(registers=64), "It has 8 blocks on a multiprocessor, and 16 are recorded."),
    "shorter loads": (judged_kernel(width=8), "It has 8.0 bytes an access, and 16.0 are recorded."),
}


@pytest.mark.parametrize(("worse", "sentence"), WORSE.values(), ids=WORSE)
def test_worse_code_is_reported(worse: Judged, sentence: str) -> None:
    assert sentence in trouble(worse, judged_kernel().numbers)


def test_a_promise_may_be_lower() -> None:
    assert trouble(judged_kernel(width=2, access=2.0), {}) == ""


def test_a_record_is_read_back_and_replaces_that_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "bounds.json"
    file.write_text(json.dumps({"norm, gone, kernel, sm_90, 1": {}, "softmax, stays, kernel, sm_90, 1": {"access": 1}}))
    write([judged_kernel()], file)
    assert record(file) == {
        "norm, a call, kernel, sm_90, 1": {"access": 16.0, "bytes": 4.0, "instructions": 10.0, "blocks": 16},
        "softmax, stays, kernel, sm_90, 1": {"access": 1},
    }
    assert record(tmp_path / "none.json") == {}


def test_the_table_has_a_line_for_each_kernel() -> None:
    line = as_markdown([judged_kernel()]).splitlines()[-1]
    assert line == "| norm | a call | kernel | 1 x 16 | 1 x 16 | 16 | 4 | 4 | 10 | 32 | 16 | 0.5 |"


def _gate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tools.ahead", "--sass", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)


@pytest.mark.night
def test_every_kernel_is_within_its_record() -> None:
    done = _gate()
    assert done.returncode == 0, done.stderr


def test_every_record_is_of_a_declared_call() -> None:
    declared = {p.stem: p.read_text() for p in (REPOSITORY / "autofuse" / "kernels" / "triton").glob("*.py")}
    for name in record():
        file, *label, _kernel, _target, _number = name.split(", ")
        assert ", ".join(label) in declared[file]
