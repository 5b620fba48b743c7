"""A Monitor in Lightning's Trainer (lightning and pytorch_lightning): `callbacks=[MonitorCallback("run.jsonl")]`."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from autofuse.monitoring.monitor import Monitor


def _callback_classes() -> tuple[type, ...]:
    """The Callback class of each installed package. The two are different, and each Trainer requires its own.

    Raises:
        ImportError: Neither package is installed.
    """
    installed = [name for root, name in _PACKAGES if find_spec(root) is not None]
    if not installed:
        raise ImportError(
            "autofuse.monitoring.lightning needs Lightning, which is not installed: pip install lightning. "
            "In your own training loop, use autofuse.Monitor instead."
        )
    return tuple(importlib.import_module(name).Callback for name in installed)


_PACKAGES = (("lightning", "lightning.pytorch"), ("pytorch_lightning", "pytorch_lightning"))

if TYPE_CHECKING:

    class _Callback:
        """A Callback of either package."""

else:
    _Callback = type("_Callback", _callback_classes(), {})


class MonitorCallback(_Callback):
    """Measures training batches on this process. Samples and tokens are read from the shapes of each batch.

    With accumulated gradients, a step of the monitor is one batch. Validation between two batches is part of the
    interval.

    Args:
        writers: as `autofuse.Monitor` takes them.
        options: other arguments of `autofuse.Monitor`.

    Attributes:
        monitor: the Monitor of the last training, or None.
    """

    def __init__(self, writers: Any = (), **options: Any) -> None:
        super().__init__()
        self.writers, self.options = writers, options
        self.monitor: Monitor | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts a Monitor."""
        self.monitor = Monitor(pl_module, self.writers, **self.options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Ends a step."""
        if self.monitor is not None:
            self.monitor.step(batch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes the unfinished interval."""
        if self.monitor is not None:
            self.monitor.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Writes the unfinished interval of a training that fails."""
        if self.monitor is not None:
            self.monitor.close()
