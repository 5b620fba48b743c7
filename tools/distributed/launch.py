"""Starts the processes for one number of ranks. If they end early, it starts them again for the remaining rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.distributed.matrix import rows_of
from tools.distributed.result import Result

_ROOT = Path(__file__).parents[2]
_TAIL = 4000  # the number of characters of a failed process's output to show


def run_rows(ranks: int, only: Sequence[str], device: str) -> list[Result]:
    """Return the results of all rows for a number of ranks, in order."""
    rows = rows_of(ranks, only)
    results: list[Result] = []
    while len(results) < len(rows):
        found, said = _launch(ranks, only, device, len(results))
        results += found
        if len(results) < len(rows) and not (found and found[-1].verdict == "ended"):
            way, order = rows[len(results)]
            why = "the processes ended in this row: " + (said.strip().splitlines() or ["they said nothing"])[-1]
            results.append(Result(len(results), way.name, order, ranks, device, "ended", why))
            print(said[-_TAIL:], file=sys.stderr)
    return results


def _launch(ranks: int, only: Sequence[str], device: str, start: int) -> tuple[list[Result], str]:
    """Start the processes at row `start`. Return the results until they ended, and their output."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
            "-m", "tools.distributed.worker", str(out), f"--skip={start}", f"--device={device}",
            *(["--only", *only] if only else []),
        ]  # fmt: skip
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True)
        lines = out.read_text().splitlines() if out.exists() else []
        return [Result(**json.loads(line)) for line in lines], done.stdout + done.stderr
