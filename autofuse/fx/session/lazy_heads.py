"""Finds the linear layers of a model whose output only a loss reads. Their logits are computed only if they are read.

If a model returns its logits along with the loss, or leaves the loss to its caller, the graph of one module does not
show who reads them. So a copy of the model runs the call with lazy logits, which record their uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.fx.lazy.head import make_lazy, restore_lazy
from autofuse.fx.lazy.layer_forward import is_plain_linear
from autofuse.fx.lazy.linear import LEAST_LOGITS
from autofuse.fx.lazy.losses import record_losses
from autofuse.fx.lazy.tensor import LazyLogits, record_reads
from autofuse.fx.session.head_steps import dtype_of, gradients_of_step, lazy_logits_in, relative_errors, run_step
from autofuse.fx.session.memory_room import CallsOfHeads
from autofuse.fx.session.trials import copy_module
from autofuse.fx.trace.runs_on_copies import without_effects
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.fx.trace.stand_ins import Forms
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.results.sites import SiteReport
from autofuse.verify.out_of_memory import reraise_if_out_of_memory

HEAD_RULE = "AF502"
_KERNEL = "linear_cross_entropy in blocks of rows; the logits of {head} are computed when they are read"
_FAST_FEATURES = 8  # 16 bytes in half precision
LossFn = Callable[..., Any]
_ALIKE = 1e-5  # relative to the largest entry, in float64; models cast logits to float32


@dataclass(frozen=True)
class LazyHead:
    """A linear layer whose output can be lazy.

    Attributes:
        module: The layer.
        name: Its name in the model.
        place: The line of the loss, None if the caller computes it.
        error: The difference that a check observed, None if it was not checked.
        reason: Why the layer cannot be lazy, None if it can.
    """

    module: nn.Linear
    name: str
    place: SourceLine | None
    error: float | None
    reason: Reason | None = None


def find_lazy_heads(
    model: nn.Module, calls: CallsOfHeads, names: dict[nn.Module, str], sharded: Forms, loss_fn: LossFn | None
) -> list[LazyHead]:
    """The linear layers whose output only a loss reads in a training step.

    Args:
        model: The model.
        calls: The arguments of the step, and of the steps whose results and gradients are compared with those of the
            original. If there is none of these, nothing is compared.
        names: The modules to consider, with their names.
        sharded: The forms of tensors that are not on this rank.
        loss_fn: The loss function of the caller, or None.

    Returns:
        The layers that can be lazy, and with a reason those that cannot.
    """
    wanted = {m: n for m, n in names.items() if is_plain_linear(m) and _is_wide(m)}
    if not wanted or any(id(p) in sharded for m in wanted for p in m.parameters()):
        return []  # the model cannot run here
    copies: dict[nn.Module, nn.Module] = {}
    copy = copy_module(model, copies, sharded)
    heads = {copies[m]: m for m in wanted if m in copies}
    with without_effects():
        trial = _Trial(copy, calls, {head: wanted[m] or "the model" for head, m in heads.items()})
        found = trial.find_unread_heads(heads, loss_fn is not None)
        lazy = [
            _lazy_head(heads[head], wanted[heads[head]], place, trial.compare(head))  # type: ignore[arg-type]
            for head, place in found.items()
        ]
        plain = [
            LazyHead(heads[head], wanted[heads[head]], place, None, why)  # type: ignore[arg-type]
            for head, (why, place) in trial.reasons.items()
        ]
        return lazy + plain


def _lazy_head(
    module: nn.Linear, name: str, place: SourceLine | None, outcome: tuple[float | None, str]
) -> LazyHead:  # fmt: skip
    error, why = outcome
    return LazyHead(module, name, place, error, because(outcomes.DIFFERS, why=why) if why else None)


def report_of_head(head: LazyHead) -> SiteReport:
    """The report of a head. Its line is that of the loss, if the model computes the loss."""
    file, line = (head.place.file, head.place.line) if head.place else ("", None)
    if head.reason is not None:
        why = head.reason
        return SiteReport(
            HEAD_RULE, "", "declined", str(why), "", None, file, line, why.advice(), reason_code=why.code.name
        )
    return SiteReport(HEAD_RULE, "", "fused", "", _KERNEL.format(head=head.name or "the model"), head.error, file, line)


def unchecked_heads(why: str) -> SiteReport:
    """The report of a model whose logits stay as they are, because no copy of it fits into memory."""
    reason = because(outcomes.LOGITS_UNCHECKED, why=why)
    return SiteReport(HEAD_RULE, "", "declined", str(reason), advice=reason.advice(), reason_code=reason.code.name)


def _is_large(x: LazyLogits) -> bool:
    """Whether logits are still lazy and large enough to be lazy in a step."""
    return not x.is_computed and x.numel() >= LEAST_LOGITS


def _is_wide(module: nn.Module) -> bool:
    """Whether the output of a layer is larger than its input."""
    return isinstance(module, nn.Linear) and module.out_features > module.in_features


class _Trial:
    """Runs one call on a copy of a model in training mode."""

    def __init__(self, copy: nn.Module, calls: CallsOfHeads, names: dict[nn.Module, str]) -> None:
        self._copy, self._calls, self._names = copy.train(), calls, names
        self.reasons: dict[nn.Module, tuple[Reason, SourceLine | None]] = {}  # why heads cannot be lazy, and where

    def find_unread_heads(
        self, heads: dict[nn.Module, nn.Module], returned: bool
    ) -> dict[nn.Module, SourceLine | None]:
        """The heads whose logits only a loss used, with its line. `returned`: also count returned logits."""
        for head in heads:
            make_lazy(head)  # type: ignore[arg-type]
        with record_losses() as fused, record_reads() as reads:
            result = run_step(self._copy, self._calls.read)
        for head in heads:
            restore_lazy(head)
        places: dict[nn.Module, SourceLine | None] = {}
        for head in heads:
            of_losses = [f for f in fused if f.x.node.source.operands[1] is head.weight]
            of_results = [x for x in lazy_logits_in(result) if x.node.source.operands[1] is head.weight and returned]
            sources = [x.node.source for x in (*(f.x for f in of_losses), *of_results)]
            if (
                sources
                and all(n.value is None for s in sources for n in s.nodes)
                and all(s.value is None for s in sources)
            ):
                places[head] = of_losses[0].place if of_losses else None
            elif of_losses:
                read = next((r.place for r in reads if r.source.operands[1] is head.weight), None)
                where = f" at {os.path.basename(read.file)}:{read.line}" if read else ""
                self.reasons[head] = (
                    because(outcomes.LOGITS_READ, head=self._names[head], where=where),
                    of_losses[0].place,
                )
            elif any(x.node.source.operands[1] is head.weight and _is_large(x) for x in lazy_logits_in(result)):
                self.reasons[head] = why_no_loss(self._names[head], head), None
        return places

    def compare(self, head: nn.Module) -> tuple[float | None, str]:
        """The largest difference of results and gradients, and a reason if it is too large.

        It is computed in float64, or in the dtype of the model if an operator does not support float64.
        """
        if not self._calls.compared:
            return None, ""
        dtype = dtype_of(self._copy)
        both = self._gradients_of_both(head, self._copy.double())
        how, alike = "computed in double, ", _ALIKE
        if both is None:
            # The tolerance follows from the precision of the dtype.
            how, alike = "", max(_ALIKE, 64 * torch.finfo(dtype).eps)
            both = self._gradients_of_both(head, self._copy.to(dtype))
        if both is None:
            return None, "the model has no backward pass for these inputs"
        expected, found = both
        if expected.keys() != found.keys():
            return None, "other parameters have a gradient"
        errors = relative_errors(expected, found)
        worst = max(errors, key=errors.__getitem__, default="")
        if worst and not errors[worst] <= alike:
            return None, f"{how}{worst} differs by {errors[worst]:.1e}"
        return errors.get(worst), ""

    def _gradients_of_both(
        self, head: nn.Module, model: nn.Module
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """The gradients of `model` without and with a lazy head, for the first call that it accepts; None if none."""
        for call in self._calls.compared:
            try:
                plain = gradients_of_step(model, call)
                make_lazy(head)  # type: ignore[arg-type]
                return plain, gradients_of_step(model, call)
            except Exception as error:
                reraise_if_out_of_memory(error)
            finally:
                restore_lazy(head)
        return None


def why_no_loss(name: str, head: nn.Module) -> Reason:
    """The reason why the output of a layer stays as it is, if no loss of it is seen."""
    weight = head.weight
    if isinstance(weight, Tensor) and weight.is_cuda and weight.shape[0] % _FAST_FEATURES:
        return because(outcomes.SLOW_PRODUCTS, head=name, features=weight.shape[0])
    return because(outcomes.NO_LOSS_SEEN, head=name)
