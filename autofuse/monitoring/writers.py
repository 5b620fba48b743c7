"""Writes the figures of a monitor: JSON lines, Prometheus text, TensorBoard, Weights & Biases, MLflow.

The last three need their packages. A writer whose package is not installed raises ImportError when it is created.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol

from autofuse.monitoring.figures import IntervalFigures

_PREFIX = "autofuse"


class Writer(Protocol):
    """Gets the figures of every interval."""

    def write(self, figures: IntervalFigures) -> None:
        """Writes one interval."""

    def close(self) -> None:
        """Flushes what was written. No figures follow."""


class JsonLines:
    """Appends one JSON object for each interval to a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Creates the file and its folder at the first interval."""
        self.path = Path(path)
        self._file: IO[str] | None = None

    def write(self, figures: IntervalFigures) -> None:
        """Appends the figures of an interval."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(figures.to_dict()) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Prometheus:
    """Keeps a file in Prometheus' text format, as node_exporter's textfile collector reads it.

    The file holds the last interval. It is replaced in one step, so a reader never sees half of it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, figures: IntervalFigures) -> None:
        """Replaces the file by one with the figures of an interval."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(prometheus_text(figures), encoding="utf-8")
        os.replace(temporary, self.path)

    def close(self) -> None:
        """The file stays."""


def prometheus_text(figures: IntervalFigures) -> str:
    """The figures as gauges: `autofuse_tokens_per_second{device="..."} 1234.0`."""
    device = figures.device.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines = []
    for name, value in {"step": float(figures.step), **figures.numbers()}.items():
        lines += [f"# TYPE {_PREFIX}_{name} gauge", f'{_PREFIX}_{name}{{device="{device}"}} {value!r}']
    return "\n".join(lines) + "\n"


class TensorBoard:
    """Writes scalars `autofuse/...` for TensorBoard.

    Raises:
        ImportError: the package tensorboard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        _package("tensorboard", "TensorBoard")
        module = importlib.import_module("torch.utils.tensorboard")
        self._writer: Any = module.SummaryWriter(os.fspath(folder))

    def write(self, figures: IntervalFigures) -> None:
        """Writes the figures of an interval as scalars."""
        for name, value in figures.numbers().items():
            self._writer.add_scalar(f"{_PREFIX}/{name}", value, figures.step)

    def close(self) -> None:
        """Closes the file of events."""
        self._writer.close()


class Wandb:
    """Logs to a run of Weights & Biases, by default the active one.

    The figures have a step axis of their own, `autofuse/step`, so they do not disturb the steps that a trainer logs.

    Raises:
        ImportError: the package wandb is not installed.
        RuntimeError: no run is given and none is active.
    """

    def __init__(self, run: Any = None) -> None:
        self._run = run if run is not None else _package("wandb", "Weights & Biases").run
        if self._run is None:
            raise RuntimeError("No run of Weights & Biases is active: call wandb.init() first, or pass the run.")
        self._run.define_metric(f"{_PREFIX}/step")
        self._run.define_metric(f"{_PREFIX}/*", step_metric=f"{_PREFIX}/step")

    def write(self, figures: IntervalFigures) -> None:
        """Logs the figures of an interval."""
        numbers = {"step": figures.step, **figures.numbers()}
        self._run.log({f"{_PREFIX}/{name}": value for name, value in numbers.items()})

    def close(self) -> None:
        """The run stays open, because the program that started it finishes it."""


class Mlflow:
    """Logs metrics `autofuse/...` to a run of MLflow, by default the active one.

    Raises:
        ImportError: the package mlflow is not installed.
        RuntimeError: no run is given and none is active.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self._mlflow: Any = _package("mlflow", "MLflow")
        active = self._mlflow.active_run()
        if run_id is None and active is None:
            raise RuntimeError("No run of MLflow is active: call mlflow.start_run() first, or pass its run_id.")
        self._run_id = run_id or active.info.run_id

    def write(self, figures: IntervalFigures) -> None:
        """Logs the figures of an interval."""
        numbers = {f"{_PREFIX}/{name}": value for name, value in figures.numbers().items()}
        self._mlflow.log_metrics(numbers, step=figures.step, run_id=self._run_id)

    def close(self) -> None:
        """The run stays open, because the program that started it ends it."""


def active_writers() -> list[Writer]:
    """Writers for the runs of Weights & Biases and MLflow that are active in this process. Imports nothing."""
    found: list[Writer] = []
    if getattr(sys.modules.get("wandb"), "run", None) is not None:
        found.append(Wandb())
    mlflow: Any = sys.modules.get("mlflow")
    if mlflow is not None and mlflow.active_run() is not None:
        found.append(Mlflow())
    return found


def _package(name: str, product: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Writing to {product} needs the package {name}, which is not installed: pip install {name}. "
            "autofuse.monitoring.JsonLines needs no package."
        ) from error
