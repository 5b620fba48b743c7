"""A callback for the Trainer of transformers: `Trainer(..., callbacks=[AutofuseCallback()])`.

The model is optimized as soon as the Trainer has it, before it is wrapped, sharded or compiled, and each module is
captured when it is first called: with the batches, the precision and the checkpointing of the run itself. Knows the
order in which the Trainer calls; what is done to a model is done elsewhere.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from autofuse.fx.session.optimize import optimize, report
from autofuse.integrations.eager_first import EagerFirst, is_compiled
from autofuse.integrations.run_summary import tell
from autofuse.results.sites import Report

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "autofuse.integrations.transformers needs transformers, which is not installed: "
        "pip install 'transformers[torch]'. For a loop of your own, autofuse.optimize(model) is enough."
    ) from error

_LOG = logging.getLogger("autofuse")


class AutofuseCallback(TrainerCallback):
    """Optimizes the Trainer's model, and tells the log `autofuse` at the end what became of it.

    options: what `autofuse.optimize` takes besides the model and example inputs: select, ignore, modules, verify.

    Works with DDP, FSDP, PEFT, mixed precision, gradient checkpointing and `torch_compile`; under the latter the first
    training step, and the first evaluation batch, run eagerly, for that is when modules are captured. Checkpoints are
    those of the model as it is: they load with this callback and without it. Raises what `optimize` raises, when the
    Trainer is made.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.report = Report(())
        self._eager = EagerFirst()
        self._compiles = self._evaluated = False

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Before anything is wrapped around the model."""
        self._optimize(kwargs.get("model"))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Once more, for a model of `model_init` and for a callback that was added late; else it changes nothing."""
        model = kwargs.get("model")
        self._optimize(model)
        self._compiles = bool(args.torch_compile) or isinstance(model, nn.Module) and is_compiled(model)
        if self._compiles:
            self._eager.hold()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The first batch of a step that accumulates gradients is over."""
        self._eager.release()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The first step is over; if an evaluation follows, its first batch is eager too."""
        self._eager.release()
        self._before_evaluation(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """As at the end of a step."""
        self._before_evaluation(control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The first batch of an evaluation is over."""
        self._evaluated = True
        self._eager.release()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell what became of the model."""
        self._eager.release()
        model = kwargs.get("model")
        if isinstance(model, nn.Module):
            self.report = report(model)
            tell(type(model).__name__, self.report)

    def _optimize(self, model: Any) -> None:
        if isinstance(model, nn.Module):
            optimize(model, **self.options)

    def _before_evaluation(self, control: TrainerControl) -> None:
        if self._compiles and control.should_evaluate and not self._evaluated:
            self._eager.hold()
