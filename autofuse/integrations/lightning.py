"""A callback for Lightning: `Trainer(..., callbacks=[AutofuseCallback()])`, of lightning and of pytorch_lightning.

The module is optimized in `setup`, before a strategy wraps or shards it, and each layer is captured when it is first
called: with the batches and the precision of the run itself. Knows the order in which the Trainer calls; what is done
to a model is done elsewhere.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import nn

from autofuse.fx.session.optimize import optimize, report
from autofuse.integrations.eager_first import EagerFirst, is_compiled
from autofuse.integrations.run_summary import tell
from autofuse.results.sites import Report


def _callback_classes() -> tuple[type, ...]:
    """The Callback class of each of the two packages that is installed: they are two, and each asks for its own."""
    homes = [(root, name) for root, name in _HOMES if find_spec(root) is not None]
    if not homes:
        raise ImportError(
            "autofuse.integrations.lightning needs Lightning, which is not installed: pip install lightning. "
            "For a loop of your own, autofuse.optimize(model) is enough."
        )
    return tuple(importlib.import_module(name).Callback for _, name in homes)


_HOMES = (("lightning", "lightning.pytorch"), ("pytorch_lightning", "pytorch_lightning"))

if TYPE_CHECKING:

    class _Callback:
        """A Callback of either package."""

else:
    _Callback = type("_Callback", _callback_classes(), {})


class AutofuseCallback(_Callback):
    """Optimizes the LightningModule, and tells the log `autofuse` at the end of `fit` what became of it.

    options: what `autofuse.optimize` takes besides the model and example inputs: select, ignore, modules, verify.
    report: what became of the model, once `fit` is over.

    Works with every strategy that runs the module's own layers, DDP and FSDP among them, with layers that are made in
    `configure_model`, and with mixed precision. Of a compiled module the sanity check and the first training batch run
    eagerly, for that is when layers are captured. Checkpoints load with this callback and without it. Raises what
    `optimize` raises.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.report = Report(())
        self._eager = EagerFirst()

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Before `configure_model`, and before the strategy has the module."""
        optimize(pl_module, **self.options)

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Once more, for layers that `configure_model` made; else it changes nothing."""
        optimize(pl_module, **self.options)

    def on_sanity_check_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """The first validation batches, if there are any."""
        self._hold(pl_module)

    def on_sanity_check_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """They are over."""
        self._eager.release()

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Before the first training batch."""
        self._hold(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """It is over."""
        self._eager.release()

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Tell what became of the module."""
        self._eager.release()
        self.report = report(pl_module)
        tell(type(pl_module).__name__, self.report)

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Leave the compiler as it was."""
        self._eager.release()

    def _hold(self, pl_module: nn.Module) -> None:
        if getattr(pl_module, "_compiler_ctx", None) is not None or is_compiled(pl_module):
            self._eager.hold()
