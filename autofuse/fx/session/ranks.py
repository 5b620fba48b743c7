"""Ranks of one training job make the same decisions.

Every rank looks at its own copy of the model, with its own numbers, and could come to another plan. At `optimize` with
example inputs rank 0's plan is published in the store of the process group, and the others wait for it, up to PATIENCE
seconds. At a later capture nobody waits, for nobody knows who else will come by: the first to come publishes, and the
others compare. Who follows leaves out what the other one did not fuse; what the other one fused and this rank may not
is an error. No collective is used, so a missing rank deadlocks nobody. Without torch.distributed nothing happens.

Knows decisions as texts; what they mean to a plan is the session's business.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from autofuse.ops.distributed import is_distributed
from autofuse.reasons import outcomes
from autofuse.reasons.reason import Reason, because
from autofuse.torch_private import get_default_store
from autofuse.torch_private.nested import plain_parts, tensors_in

PATIENCE = 300.0  # seconds that a rank waits for rank 0's decisions

_LOG = logging.getLogger("autofuse")
_sessions: Counter[str] = Counter()  # likeness of a model -> how often one like it was optimized in this process
_optimized = 0  # how often optimize decided on something in this process

SiteKey = tuple[str, str, str]  # module, rule, which of its matches


class Disagreement(RuntimeError):
    """A rank cannot do what another one does. Says which module, which rule, and both reasons."""


@dataclass(frozen=True)
class Decisions:
    """What one rank would fuse, and what it has to say of the rest: (module, rule) -> (status, reason)."""

    fused: frozenset[SiteKey] = frozenset()
    others: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    model: str = ""
    sizes: str = ""
    rank: int = 0

    def written(self) -> str:
        others = [[*place, *said] for place, said in sorted(self.others.items())]
        return json.dumps([sorted(self.fused), others, self.model, self.sizes, self.rank])


def _read(text: str) -> Decisions:
    fused, others, model, sizes, rank = json.loads(text)
    said = {(module, rule): (status, reason) for module, rule, status, reason in others}
    return Decisions(frozenset(tuple(site) for site in fused), said, model, sizes, rank)


class Ranks:
    """One session's side of the agreement. Made by every rank for the same model in the same order."""

    def __init__(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        """`modules`: those of the model, with their names."""
        self.model = _short([(name, type(m).__qualname__) for name, m in modules])
        _sessions[self.model] += 1
        self._name = f"{self.model}/{_sessions[self.model]}"

    def at_optimize(self, mine: Decisions) -> Decisions:
        """The decisions that all ranks follow: rank 0's, or for another model than rank 0's, the first one's.

        Raises Disagreement where rank 0 does not come.
        """
        store = _store()
        if store is None:
            return mine
        global _optimized
        _optimized += 1
        key, rank = f"optimize/{_optimized}", dist.get_rank()
        if rank == 0:
            store.set(key, mine.written())
            store.set(f"{self._name}/optimize", mine.written())
            return mine
        try:
            store.wait([key], timedelta(seconds=PATIENCE))
        except RuntimeError as error:
            raise Disagreement(
                f"Rank {rank} optimizes a model and waited {PATIENCE:.0f} seconds for rank 0 to decide what is fused. "
                "Call autofuse.optimize with example inputs on every rank, at the same place of the program; or "
                "without example inputs, where nobody waits."
            ) from error
        theirs = _read(store.get(key).decode())
        if theirs.model == mine.model:
            return theirs
        return self._first(f"{self._name}/optimize", mine)  # a stage of a pipeline, say

    def at_call(self, module: str, training: bool, call: Any, mine: Decisions) -> Decisions:
        """The decisions for one kind of call of a module: those of the first rank that met one."""
        if _store() is None:
            return mine
        return self._first(f"{self._name}/{module}/{_kind(training, call)}", mine)

    def _first(self, key: str, mine: Decisions) -> Decisions:
        store = _store()
        assert store is not None
        found = store.compare_set(key, "", mine.written()).decode()
        return _read(found) if found else mine


def left_out(mine: Decisions, theirs: Decisions) -> frozenset[SiteKey]:
    """The sites that a rank leaves out to do as another one does; without them, smaller ones may be found.

    Where there are none, raises Disagreement if the other one fused what this one did not. Calls of other sizes may
    differ in what fits them: there it is only logged.
    """
    out = mine.fused - theirs.fused
    for module, rule, _ in () if out else sorted(theirs.fused - mine.fused):
        said = _why_not(mine, theirs, module, rule)
        if mine.sizes == theirs.sizes:
            raise Disagreement(said)
        _LOG.warning("%s Its call had other sizes.", said)
    return out


def reason_of(theirs: Decisions, module: str, rule: str) -> tuple[str, Reason]:
    """Status and reason of what another rank left out."""
    status, reason = theirs.others.get((module, rule), ("declined", "it found no such place"))
    return status, because(outcomes.OTHER_RANK, rank=theirs.rank, why=reason)


def _why_not(mine: Decisions, theirs: Decisions, module: str, rule: str) -> str:
    status, reason = mine.others.get((module, rule), ("declined", "no such place was found"))
    what = "it failed verification" if status == "rolled-back" else "it was declined"
    return (
        f"Ranks disagree about {rule} in {module or 'the model'}: rank {theirs.rank} fused it, as it holds there; on "
        f"rank {mine.rank} {what}: {reason.rstrip('.')}. Leave the rule out on all ranks, ignore=[{rule!r}], or give "
        "all ranks the same example inputs."
    )


def alone() -> bool:
    """Whether there is nobody to agree with."""
    return _store() is None


def this_rank() -> int:
    """The rank of this process, 0 where there are no others."""
    return 0 if alone() else dist.get_rank()


def sizes_of(call: Any) -> str:
    """The sizes of the tensors in a call, as a text."""
    return str([tuple(x.shape) for x in tensors_in(call, plain_parts)])


def _store() -> Any:
    """Where ranks leave word for one another; None where there is but one, or where there are only pretended others."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2 or dist.get_backend() == "fake":
        return None
    default = get_default_store()
    return dist.PrefixStore("autofuse", default)  # type: ignore[attr-defined]


def _kind(training: bool, call: Any) -> str:
    """Equal for calls that differ only in sizes and numbers."""
    return _short((training, _kind_of(call)))


def _kind_of(x: Any) -> Hashable:
    if isinstance(x, Tensor):
        return str(x.dtype), x.dim(), x.requires_grad, is_distributed(x)
    if type(x) in (tuple, list):
        return tuple(map(_kind_of, x))
    if type(x) is dict:
        return tuple((str(k), _kind_of(v)) for k, v in x.items())
    return (type(x).__qualname__, repr(x)) if isinstance(x, (bool, str, type(None))) else type(x).__qualname__


def _short(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
