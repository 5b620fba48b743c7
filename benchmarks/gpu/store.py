"""Rows on disk: each is written when it is measured, and is not measured again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from autofuse.measure.environment import environment

Row = dict[str, Any]
FORMAT_VERSION = 1
_PACKAGES = ("triton", "numpy", "transformers", "liger-kernel", "flash-attn", "flash-attn-4", "quack-kernels", "apex")
_TRIES = 2  # a row that ended its process this often is not measured again


@dataclass(frozen=True)
class Setting:
    """The device. With `toy`, sizes only test the code. With `warm`, rows only fill the compilers' caches."""

    device: torch.device
    toy: bool
    warm: bool = False
    timed_seconds: float = 2.0

    @property
    def seconds(self) -> float:
        """The time for one row."""
        if self.warm:
            return 0.0
        return 0.05 if self.toy else self.timed_seconds

    @property
    def grid(self) -> str:
        """The shapes of benchmarks/cases.py."""
        return "toy" if self.toy else "gpu"


@dataclass(frozen=True)
class Task:
    """A row to measure: its name, the function that measures it, and the seconds that it may take."""

    key: str
    run: Callable[[], Row]
    seconds: float = 45.0


class Results:
    """The rows of a folder.

    Raises:
        ValueError: if they belong to other hardware, versions or sizes.
    """

    def __init__(self, folder: Path, setting: Setting) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._file = folder, folder / "rows.jsonl"
        self.rows: dict[str, Row] = {}
        self.broken = False
        self._started: Counter[str] = Counter()
        self.environment = environment_of(setting.device, "toy" if setting.toy else "full")
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            self._load_line(json.loads(line))
        if not self._file.exists():
            self._append({"environment": self.environment})

    def has(self, key: str) -> bool:
        """Whether a row is done, or was tried as often as allowed."""
        return key in self.rows or self._started[key] >= _TRIES

    def run(self, task: Task) -> Row:
        """Measures a row and stores it. An error becomes a row with the error."""
        self._append({"started": task.key})
        try:
            row = {"key": task.key, **task.run()}
        except Exception as error:
            self.broken = _breaks_context(error)
            row = {
                "key": task.key,
                "failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            }
        self._append(row)
        self.rows[task.key] = row
        return row

    def write(self, as_markdown: Callable[[Results], str]) -> None:
        """Writes results.json and results.md with all rows."""
        abandoned = [key for key, times in self._started.items() if times >= _TRIES and key not in self.rows]
        data = {
            "version": FORMAT_VERSION, "benchmark": "gpu", "environment": self.environment,
            "rows": list(self.rows.values()), "ended_their_process": abandoned,
        }  # fmt: skip
        (self.folder / "results.json").write_text(json.dumps(data, indent=2) + "\n")
        (self.folder / "results.md").write_text(as_markdown(self))

    def _load_line(self, line: Row) -> None:
        if "environment" in line:
            differing = [k for k, v in self.environment.items() if line["environment"].get(k) != v]
            if differing:
                raise ValueError(
                    f"The rows in {self.folder} were measured elsewhere: {', '.join(differing)} differ. One table "
                    "cannot contain figures of two machines. Use another folder for --out."
                )
        elif "started" in line:
            self._started[line["started"]] += 1
        else:
            self.rows[line["key"]] = line

    def _append(self, line: Row) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def environment_of(device: torch.device, sizes: str = "full") -> dict[str, str]:
    """Hardware and versions, equal in every process: versions come from metadata, not from imported packages."""
    versions = {name: found for name in _PACKAGES if (found := _version(name))}
    found = environment(device) | versions | {"sizes": sizes}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["multiprocessors"] = str(properties.multi_processor_count)
        found["memory_bytes"] = str(properties.total_memory)
    return found


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _breaks_context(error: Exception) -> bool:
    """Whether the error destroyed the device's context, so that this process cannot run anything more."""
    return "CUDA error" in str(error) and not isinstance(error, torch.OutOfMemoryError)
