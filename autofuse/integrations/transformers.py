"""A callback for the Trainer of transformers: `Trainer(..., callbacks=[AutofuseCallback()])`.

It optimizes the model when the Trainer gets it, before the model is wrapped, sharded or compiled. autofuse captures
each module at its first call, with the batches, the precision and the checkpointing of the run.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from autofuse.fx.session.optimize import optimize, report
from autofuse.integrations.eager_first import EagerFirst, is_compiled
from autofuse.integrations.run_summary import log_report
from autofuse.results.sites import Report

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "autofuse.integrations.transformers needs transformers, which is not installed: "
        "pip install 'transformers[torch]'. In your own training loop, call autofuse.optimize(model) instead."
    ) from error

_LOG = logging.getLogger("autofuse")


class AutofuseCallback(TrainerCallback):
    """Optimizes the Trainer's model, and logs the result to the logger `autofuse` at the end of training.

    Works with DDP, FSDP, PEFT, mixed precision, gradient checkpointing and `torch_compile`. With `torch_compile`, the
    first training step and the first evaluation batch run eagerly, because autofuse captures modules then. Checkpoints
    are those of the original model: they load with and without this callback.

    If the Trainer computes the loss itself (`compute_loss_func`, or label smoothing), `optimize` gets that function as
    `loss_fn`: in training the logits are then computed only if they are read. A model that computes its own loss
    from labels needs no `loss_fn`.

    Args:
        options: keyword arguments of `autofuse.optimize`: select, ignore, modules, verify. `loss_fn` overrides the
            Trainer's; None passes no loss.

    Attributes:
        report: the result for the model, after training.

    Raises:
        Exception: whatever `optimize` raises, when the Trainer is made.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.report = Report(())
        self._eager = EagerFirst()
        self._compiles = self._has_evaluated = False

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Optimizes the model before anything wraps it."""
        self._optimize(kwargs.get("model"))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Optimizes a model from `model_init`, or the model of a Trainer that got this callback late.

        Otherwise no effect.
        """
        model = kwargs.get("model")
        self._optimize(model)
        self._compiles = bool(args.torch_compile) or isinstance(model, nn.Module) and is_compiled(model)
        if self._compiles:
            self._eager.hold()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends eager execution after the first batch of a step that accumulates gradients."""
        self._eager.release()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ends eager execution after the first step. An evaluation that follows starts with an eager batch."""
        self._eager.release()
        self._hold_before_evaluation(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Runs the first batch of a following evaluation eagerly."""
        self._hold_before_evaluation(control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends eager execution after the first batch of an evaluation."""
        self._has_evaluated = True
        self._eager.release()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Logs the result for the model."""
        self._eager.release()
        model = kwargs.get("model")
        if isinstance(model, nn.Module):
            self.report = report(model)
            log_report(type(model).__name__, self.report)

    def _optimize(self, model: Any) -> None:
        if not isinstance(model, nn.Module):
            return
        if "loss_fn" not in self.options and (loss := next(_trainer_losses(model), None)) is not None:
            self.options["loss_fn"] = loss
        optimize(model, **self.options)

    def _hold_before_evaluation(self, control: TrainerControl) -> None:
        if self._compiles and control.should_evaluate and not self._has_evaluated:
            self._eager.hold()


def _trainer_losses(model: nn.Module) -> Iterator[Callable[..., Any]]:
    """The loss functions of the Trainers of `model` that call this callback, from the inside out.

    A Trainer does not pass itself to its callbacks, so it is found among the callers.
    """
    frame = inspect.currentframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer) and trainer.model is model:
            loss = trainer.compute_loss_func or trainer.label_smoother
            if loss is not None:
                yield loss
        frame = frame.f_back
