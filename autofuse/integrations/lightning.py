"""A callback for Lightning (lightning and pytorch_lightning): `Trainer(..., callbacks=[AutofuseCallback()])`.

`setup` optimizes the module before a strategy wraps or shards it. autofuse captures each layer at its first call, with
the batches and the precision of the run.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import nn

from autofuse.fx.session.optimize import optimize, report
from autofuse.integrations.eager_first import EagerFirst, is_compiled
from autofuse.integrations.run_summary import log_report
from autofuse.results.sites import Report


def _callback_classes() -> tuple[type, ...]:
    """The Callback class of each installed package. The two are different, and each Trainer requires its own.

    Raises:
        ImportError: Neither package is installed.
    """
    installed = [(root, name) for root, name in _PACKAGES if find_spec(root) is not None]
    if not installed:
        raise ImportError(
            "autofuse.integrations.lightning needs Lightning, which is not installed: pip install lightning. "
            "In your own training loop, call autofuse.optimize(model) instead."
        )
    return tuple(importlib.import_module(name).Callback for _, name in installed)


_PACKAGES = (("lightning", "lightning.pytorch"), ("pytorch_lightning", "pytorch_lightning"))

if TYPE_CHECKING:

    class _Callback:
        """A Callback of either package."""

else:
    _Callback = type("_Callback", _callback_classes(), {})


class AutofuseCallback(_Callback):
    """Optimizes the LightningModule, and logs the result to the logger `autofuse` at the end of `fit`.

    Works with every strategy that runs the module's own layers (such as DDP and FSDP), with layers that
    `configure_model` makes, and with mixed precision. If the module is compiled, the sanity check and the first
    training batch run eagerly, because autofuse captures layers then. Checkpoints load with and without this callback.

    If the module has one loss from `torch.nn` that takes logits (`self.loss = nn.CrossEntropyLoss()`), `optimize` gets
    it as `loss_fn`. This has an effect if `training_step` calls the module itself, `self(batch)`. For any other loss,
    pass `loss_fn`.

    Args:
        options: keyword arguments of `autofuse.optimize`: select, ignore, modules, verify. `loss_fn` overrides the
            module's; None passes no loss.

    Attributes:
        report: the result for the model, after `fit`.

    Raises:
        Exception: whatever `optimize` raises.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.report = Report(())
        self._eager = EagerFirst()

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Optimizes the module before `configure_model`, and before the strategy gets it."""
        self._optimize(pl_module)

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Optimizes layers that `configure_model` made. Otherwise it has no effect."""
        self._optimize(pl_module)

    def on_sanity_check_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Runs the first validation batches eagerly, if there are any."""
        self._hold_if_compiled(pl_module)

    def on_sanity_check_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Ends eager execution."""
        self._eager.release()

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Runs the first training batch eagerly."""
        self._hold_if_compiled(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Ends eager execution."""
        self._eager.release()

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Logs the result for the module."""
        self._eager.release()
        self.report = report(pl_module)
        log_report(type(pl_module).__name__, self.report)

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Restores the compiler stance."""
        self._eager.release()

    def _optimize(self, pl_module: nn.Module) -> None:
        optimize(pl_module, **{"loss_fn": _loss_of(pl_module), **self.options})

    def _hold_if_compiled(self, pl_module: nn.Module) -> None:
        if getattr(pl_module, "_compiler_ctx", None) is not None or is_compiled(pl_module):
            self._eager.hold()


def _loss_of(pl_module: nn.Module) -> nn.Module | None:
    """The only child that is a loss of logits from torch.nn; None if there is none, or more than one."""
    losses = [child for child in pl_module.children() if type(child) in (nn.CrossEntropyLoss, nn.NLLLoss)]
    return losses[0] if len(losses) == 1 else None
