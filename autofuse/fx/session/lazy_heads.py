"""Finds the linear layers of a model whose output only a loss reads, and has it computed when somebody reads it.

Where a model returns its logits beside the loss, or leaves the loss to its caller, no graph of one module shows that
nobody reads them. So a copy of the model makes the call with lazy logits, and they tell what became of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autofuse.fx.lazy.head import make_lazy, may_be_lazy, restore_lazy
from autofuse.fx.lazy.linear import LEAST_LOGITS, however_few
from autofuse.fx.lazy.losses import listening
from autofuse.fx.lazy.tensor import LazyLogits, noted_reads
from autofuse.fx.session.trials import copied
from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.external_state import restore_external_state
from autofuse.fx.trace.source_lines import SourceLine
from autofuse.fx.trace.stand_ins import Forms
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.fx.trace.twin import copied_object
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.results.sites import SiteReport
from autofuse.torch_private import pytree
from autofuse.verify.out_of_memory import reraise_if_out_of_memory

HEAD_RULE = "AF502"
_KERNEL = "linear_cross_entropy in blocks of rows; the logits of {head} are computed when they are read"
LossFn = Callable[..., Any]
_ALIKE = 1e-5  # of the largest entry, in double; models cast logits to float


@dataclass(frozen=True)
class LazyHead:
    """A linear layer of a model, called `name`, whose output is lazy from here on.

    place: where the loss is computed, None where that is the caller's loss; error: what a check saw, None unchecked.
    """

    module: nn.Linear
    name: str
    place: SourceLine | None
    error: float | None
    reason: Reason | None = None  # why it is not


def lazy_heads(
    model: nn.Module, call: ForwardArguments, names: dict[nn.Module, str], sharded: Forms, loss_fn: LossFn | None,
    verify: bool,
) -> list[LazyHead]:  # fmt: skip
    """The layers of `model` whose output nobody reads but a loss, in training, when it is called with `call`."""
    wanted = {m: n for m, n in names.items() if may_be_lazy(m) and _is_wide(m)}
    if not wanted or any(id(p) in sharded for m in wanted for p in m.parameters()):
        return []  # nothing can be run, so nothing is known of what is read
    made: dict[nn.Module, nn.Module] = {}
    copy = copied(model, made, sharded)
    heads = {made[m]: m for m in wanted if m in made}
    with preserve_generators(), restore_external_state():
        trial = _Trial(copy, call, {head: wanted[m] or "the model" for head, m in heads.items()})
        found = trial.unread(heads, loss_fn is not None)
        lazy = [
            _checked(heads[head], wanted[heads[head]], place, trial.compared(head) if verify else (None, ""))  # type: ignore[arg-type]
            for head, place in found.items()
        ]
        plain = [
            LazyHead(heads[head], wanted[heads[head]], place, None, why)  # type: ignore[arg-type]
            for head, (why, place) in trial.reasons.items()
        ]
        return lazy + plain


def _checked(
    module: nn.Linear, name: str, place: SourceLine | None, outcome: tuple[float | None, str]
) -> LazyHead:  # fmt: skip
    error, why = outcome
    return LazyHead(module, name, place, error, because(outcomes.DIFFERS, why=why) if why else None)


def site_of(head: LazyHead) -> SiteReport:
    """The word of the report, which is about the model: where it computes the loss, if its caller does not."""
    file, line = (head.place.file, head.place.line) if head.place else ("", None)
    if head.reason is not None:
        why = head.reason
        return SiteReport(
            HEAD_RULE, "", "declined", str(why), "", None, file, line, why.advice(), reason_code=why.code.name
        )
    return SiteReport(HEAD_RULE, "", "fused", "", _KERNEL.format(head=head.name or "the model"), head.error, file, line)


def _is_large(x: LazyLogits) -> bool:
    """Whether they are returned as they are and so many that they would be lazy in a step."""
    return not x.is_computed and x.numel() >= LEAST_LOGITS


def _is_wide(module: nn.Module) -> bool:
    """Whether the logits are larger than what they are computed from."""
    return isinstance(module, nn.Linear) and module.out_features > module.in_features


class _Trial:
    """A copy of a model that makes one call, in training."""

    def __init__(self, copy: nn.Module, call: ForwardArguments, names: dict[nn.Module, str]) -> None:
        self._copy, self._call, self._names = copy.train(), call, names
        self.reasons: dict[nn.Module, tuple[Reason, SourceLine | None]] = {}  # of heads that cannot be lazy

    def unread(self, heads: dict[nn.Module, nn.Module], returned: bool) -> dict[nn.Module, SourceLine | None]:
        """The heads that a loss was computed of while nobody read them, and where; those that are returned, too."""
        for head in heads:
            make_lazy(head)  # type: ignore[arg-type]
        with listening() as fused, noted_reads() as reads:
            result = self._run(self._copy)
        for head in heads:
            restore_lazy(head)
        places: dict[nn.Module, SourceLine | None] = {}
        for head in heads:
            of_losses = [f for f in fused if f.x.node.source.operands[1] is head.weight]
            of_results = [x for x in _lazy_in(result) if x.node.source.operands[1] is head.weight and returned]
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
            elif any(x.node.source.operands[1] is head.weight and _is_large(x) for x in _lazy_in(result)):
                self.reasons[head] = because(outcomes.NO_LOSS_SEEN, head=self._names[head]), None
        return places

    def compared(self, head: nn.Module) -> tuple[float | None, str]:
        """How far results and gradients lie apart, and a reason where that is too far.

        Computed in double, or in the model's own dtype where one of its operators has no double.
        """
        dtype = _dtype_of(self._copy)
        plain = self._gradients_of_both(head, self._copy.double())
        how, alike = "computed in double, ", _ALIKE
        if plain is None:
            how, alike = "", max(_ALIKE, 64 * torch.finfo(dtype).eps)
            plain = self._gradients_of_both(head, self._copy.to(dtype))
        if plain is None:
            return None, "the model has no backward pass for these inputs"
        expected, found = plain
        if expected.keys() != found.keys():
            return None, "other parameters have a gradient"
        errors = {name: _apart(expected[name], found[name]) for name in expected}
        worst = max(errors, key=errors.__getitem__, default="")
        if worst and not errors[worst] <= alike:
            return None, f"{how}{worst} differs by {errors[worst]:.1e}"
        return errors.get(worst), ""

    def _gradients_of_both(
        self, head: nn.Module, model: nn.Module
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Those of `model` as it is, and with a lazy head; None where it does not run."""
        try:
            plain = self._gradients(model)
            make_lazy(head)  # type: ignore[arg-type]
            return plain, self._gradients(model)
        except Exception as error:
            reraise_if_out_of_memory(error)
            return None
        finally:
            restore_lazy(head)

    def _gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """The results, and the gradients of all parameters for the sum of them, or of a loss of those with classes."""
        model.zero_grad()
        result = self._run(model)
        tensors = [t for t in pytree.tree_leaves(_contents(result)) if isinstance(t, Tensor) and t.is_floating_point()]
        total = torch.zeros((), dtype=torch.float64)
        for t in tensors:
            if t.requires_grad:
                total = total + _scalar(t).cpu()
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        found = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
        with torch.no_grad():
            found |= {f"result[{i}]": t.detach() + 0 for i, t in enumerate(tensors)}
        return found

    def _run(self, model: nn.Module) -> Any:
        args, kwargs = self._call
        dtype = _dtype_of(model)
        given = pytree.tree_map(lambda x: _given(x, dtype), (args, kwargs))
        torch.manual_seed(0)
        with torch.enable_grad(), however_few():
            return model(*given[0], **given[1])


def _dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _given(x: Any, dtype: torch.dtype) -> Any:
    if not isinstance(x, Tensor):
        return copied_object(x)
    to = dtype if x.is_floating_point() else x.dtype
    return x.detach().to(to, copy=True).requires_grad_(x.requires_grad)


def _scalar(t: Tensor) -> Tensor:
    """A number that depends on each entry: of logits (..., V) a loss, of targets drawn at random."""
    if t.ndim < 2:
        return t.double().sum()
    drawn = torch.Generator().manual_seed(t.numel())
    targets = torch.randint(t.shape[-1], (t.shape[:-1].numel(),), generator=drawn)
    return F.cross_entropy(t.reshape(-1, t.shape[-1]), targets.to(t.device)).double()


def _apart(plain: Tensor, lazy: Tensor) -> float:
    if plain.shape != lazy.shape or plain.dtype is not lazy.dtype:
        return float("inf")
    if not plain.numel():
        return 0.0
    return float((plain - lazy).abs().max() / plain.abs().max().clamp_min(1e-30))


def _lazy_in(result: Any) -> list[LazyLogits]:
    return [x for x in pytree.tree_leaves(_contents(result)) if isinstance(x, LazyLogits)]


def _contents(result: Any) -> Any:
    """What a result holds, as lists: of an object with attributes (a dataclass), those."""
    return list(_parts(result, 4))


def _parts(x: Any, depth: int) -> Iterator[Any]:
    if isinstance(x, Tensor) or not depth:
        yield x
    elif isinstance(x, dict):
        for value in x.values():
            yield from _parts(value, depth - 1)
    elif isinstance(x, list | tuple):
        for value in x:
            yield from _parts(value, depth - 1)
    elif hasattr(x, "__dict__"):
        yield from _parts(vars(x), depth - 1)
