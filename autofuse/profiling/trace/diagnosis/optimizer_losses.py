"""The loss to an optimizer that is not fused: its name, what to do, and on a CPU what fusing it saves."""

from __future__ import annotations

import re
from collections import Counter

from autofuse.profiling.trace.categories import categories_of
from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent, times
from autofuse.profiling.trace.scope import Scope
from autofuse.profiling.trace.steps import ANNOTATIONS
from autofuse.results.diagnosis import Action

# The fraction of its time that an optimizer of torch.optim saves with fused=True: passes over the parameters, the
# gradients and the states that its operators make, against those of one fused operator. On a CPU, Adam and AdamW were
# measured to save 0.58 to 0.77 of their time, and SGD with momentum 0.22 to 0.70.
_SAVED = {"Adam": 0.6, "AdamW": 0.6, "Adagrad": 0.58, "SGD": 0.37}
_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_FUSED = re.compile(r"fused", re.IGNORECASE)
_MOVING = frozenset({"aten::copy_", "aten::to", "aten::_to_copy", "aten::empty", "aten::zeros", "aten::item"})


def optimizer_names(scope: Scope) -> tuple[str, ...]:
    """Return the classes of the optimizers that step, by their time; none if the trace does not have torch's ranges."""
    time_of: Counter[str] = Counter()
    for event in scope.trace.of(*ANNOTATIONS):
        if scope.begins(event) and (found := _STEP.match(event.name)):
            time_of[found[1]] += event.duration
    return tuple(name for name, _ in time_of.most_common())


def fuse_optimizer_text(scope: Scope) -> str:
    """Return how to fuse the optimizer that steps in a trace."""
    names = optimizer_names(scope)
    if names and names[0] not in _SAVED:
        return f"Fuse the optimizer: compile the step of {names[0]}, step = torch.compile(optimizer.step)."
    name = names[0] if names else "AdamW"
    return f"Fuse the optimizer: torch.optim.{name}(model.parameters(), ..., fused=True)."


def fraction_saved(scope: Scope) -> float:
    """Return the fraction of its time that the optimizer saves if it is fused; Adam's for a class that is not known."""
    names = optimizer_names(scope)
    return _SAVED.get(names[0], _SAVED["Adam"]) if names else _SAVED["Adam"]


def optimizer_loss_on_host(scope: Scope, step: float, seconds: float | None = None) -> Loss | None:
    """Return the loss to an optimizer that runs several operators for each parameter on a CPU.

    Args:
        scope: A trace without GPUs.
        step: The length of a step, in seconds.
        seconds: The optimizer's time in one step, if it was measured without a recording.
    """
    category = categories_of(scope).get("optimizer")
    names = optimizer_names(scope)
    if category is None or not names or any(name not in _SAVED for name in names):
        return None
    operators = {name: count for name, count in category.operators.items() if name not in _MOVING}
    if len(operators) < 2 or any(_FUSED.search(name) for name in operators):
        return None  # one pass over the parameters, as in SGD without momentum, or fused
    taken = category.seconds if seconds is None else seconds
    saved = taken * fraction_saved(scope)
    evidence = f"{sum(operators.values()):,.0f} operators of {' and '.join(names)} a step, {times(taken)}"
    action = Action("fuse-optimizer", fuse_optimizer_text(scope), milliseconds(saved), evidence, "high")
    sentence = f"Unfused optimizer: {evidence}; fusing saves up to {percent(saved, step)} of the step."
    return Loss("fusable", saved, sentence, (action,))
