"""Utilisation of a running training, for each interval of steps: `from autofuse.monitoring import Monitor`.

The callbacks for trainers are in autofuse/monitoring/transformers.py and autofuse/monitoring/lightning.py.
"""

from __future__ import annotations

from autofuse.monitoring.figures import IntervalFigures
from autofuse.monitoring.monitor import Monitor
from autofuse.monitoring.writers import JsonLines, Mlflow, Prometheus, TensorBoard, Wandb, Writer, active_writers

__all__ = [
    "IntervalFigures", "JsonLines", "Mlflow", "Monitor", "Prometheus", "TensorBoard", "Wandb", "Writer",
    "active_writers",
]  # fmt: skip
