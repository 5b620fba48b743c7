"""A Monitor in the Trainer of transformers: `Trainer(..., callbacks=[MonitorCallback("run.jsonl")])`."""

from __future__ import annotations

from typing import Any

from autofuse.monitoring.monitor import Monitor

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "autofuse.monitoring.transformers needs transformers, which is not installed: pip install "
        "'transformers[torch]'. In your own training loop, use autofuse.Monitor instead."
    ) from error


class MonitorCallback(TrainerCallback):
    """Measures the training steps of a Trainer on this process.

    Samples follow from the batch size and the accumulation of gradients. Tokens are known with
    `TrainingArguments(include_num_input_tokens_seen="all")`, which sums them over all processes; a process counts an
    equal part. Evaluation and saving between two steps are part of the interval.

    Args:
        writers: as `autofuse.Monitor` takes them.
        options: other arguments of `autofuse.Monitor`.

    Attributes:
        monitor: the Monitor of the last training, or None.
    """

    def __init__(self, writers: Any = (), **options: Any) -> None:
        self.writers, self.options = writers, options
        self.monitor: Monitor | None = None
        self._seen = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts a Monitor."""
        self.monitor = Monitor(kwargs.get("model"), self.writers, **self.options)
        self._seen = state.num_input_tokens_seen

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ends a step."""
        if self.monitor is None:
            return
        seen = state.num_input_tokens_seen
        tokens = (seen - self._seen) // max(1, args.world_size) if seen > self._seen else None
        self._seen = seen
        self.monitor.step(samples=args.train_batch_size * args.gradient_accumulation_steps, tokens=tokens)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Writes the unfinished interval."""
        if self.monitor is not None:
            self.monitor.close()
