"""Exchanges decisions between the ranks of a job, so that all ranks fuse the same sites.

Each rank analyses its own copy of the model and could make another plan. At `optimize` with example inputs, rank 0
publishes its plan in the store of the process group. The other ranks wait for it up to PATIENCE seconds. At a later
capture no rank waits: the first rank publishes, and later ranks compare. A rank that follows excludes the sites that
the other rank did not fuse. A site that the other rank fused and this rank cannot fuse is an error. No collectives are
used, so a missing rank causes no deadlock. Without torch.distributed nothing happens.
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
_sessions: Counter[str] = Counter()  # key of a model -> how often such a model was optimized in this process
_optimize_count = 0  # how often optimize published a decision in this process

SiteKey = tuple[str, str, str]  # module, rule, line


class Disagreement(RuntimeError):
    """A rank cannot follow another one. The message has the module, the rule and both reasons."""


@dataclass(frozen=True)
class Decisions:
    """The decisions of one rank.

    Attributes:
        fused: The fused sites.
        others: Status and reason of the other sites, by module and rule.
        model: The key of the model.
        sizes: The shapes of the tensors in the call.
        rank: The rank.
    """

    fused: frozenset[SiteKey] = frozenset()
    others: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    model: str = ""
    sizes: str = ""
    rank: int = 0

    def to_json(self) -> str:
        others = [[*site, *decision] for site, decision in sorted(self.others.items())]
        return json.dumps([sorted(self.fused), others, self.model, self.sizes, self.rank])


def _from_json(text: str) -> Decisions:
    fused, others, model, sizes, rank = json.loads(text)
    decisions = {(module, rule): (status, reason) for module, rule, status, reason in others}
    return Decisions(frozenset(tuple(site) for site in fused), decisions, model, sizes, rank)


class Ranks:
    """Exchanges the decisions of one session. Each rank creates it for the same models in the same order."""

    def __init__(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        """Create the key of the model from its modules and their names."""
        self.model = _digest([(name, type(m).__qualname__) for name, m in modules])
        _sessions[self.model] += 1
        self._name = f"{self.model}/{_sessions[self.model]}"

    def at_optimize(self, mine: Decisions) -> Decisions:
        """The decisions that all ranks follow: those of rank 0, or of the first rank that has this model.

        Raises:
            Disagreement: Rank 0 publishes nothing within PATIENCE seconds.
        """
        store = _store()
        if store is None:
            return mine
        global _optimize_count
        _optimize_count += 1
        key, rank = f"optimize/{_optimize_count}", dist.get_rank()
        if rank == 0:
            # The first key is for all ranks, the second one for ranks that optimize the same model.
            store.set(key, mine.to_json())
            store.set(f"{self._name}/optimize", mine.to_json())
            return mine
        try:
            store.wait([key], timedelta(seconds=PATIENCE))
        except RuntimeError as error:
            raise Disagreement(
                f"Rank {rank} optimizes a model and waited {PATIENCE:.0f} seconds for the decisions of rank 0. Call "
                "autofuse.optimize with example inputs on every rank, at the same point of the program. Or call it "
                "without example inputs: then no rank waits."
            ) from error
        theirs = _from_json(store.get(key).decode())
        if theirs.model == mine.model:
            return theirs
        return self._first(f"{self._name}/optimize", mine)  # for example a stage of a pipeline

    def at_call(self, module: str, training: bool, call: Any, mine: Decisions) -> Decisions:
        """The decisions for one kind of call of a module: those of the first rank that had such a call."""
        if _store() is None:
            return mine
        return self._first(f"{self._name}/{module}/{_kind(training, call)}", mine)

    def _first(self, key: str, mine: Decisions) -> Decisions:
        store = _store()
        assert store is not None
        found = store.compare_set(key, "", mine.to_json()).decode()
        return _from_json(found) if found else mine


def sites_to_exclude(mine: Decisions, theirs: Decisions) -> frozenset[SiteKey]:
    """The sites that this rank must exclude to follow another rank. Without them, smaller ones may match.

    If the calls had other sizes, a missing site is only logged, because other sizes may need other kernels.

    Raises:
        Disagreement: There is nothing to exclude, but the other rank fused a site that this rank did not fuse.
    """
    out = mine.fused - theirs.fused
    for module, rule, _ in () if out else sorted(theirs.fused - mine.fused):
        message = _disagreement_message(mine, theirs, module, rule)
        if mine.sizes == theirs.sizes:
            raise Disagreement(message)
        _LOG.warning("%s Its call had other sizes.", message)
    return out


def exclusion_reason(theirs: Decisions, module: str, rule: str) -> tuple[str, Reason]:
    """The status and the reason of a site that another rank did not fuse."""
    status, reason = theirs.others.get((module, rule), ("declined", "it found no such site"))
    return status, because(outcomes.OTHER_RANK, rank=theirs.rank, why=reason)


def _disagreement_message(mine: Decisions, theirs: Decisions, module: str, rule: str) -> str:
    status, reason = mine.others.get((module, rule), ("declined", "no such site was found"))
    what = "it failed verification" if status == "rolled-back" else "it was declined"
    return (
        f"Ranks disagree about {rule} in {module or 'the model'}: rank {theirs.rank} fused it. On "
        f"rank {mine.rank} {what}: {reason.rstrip('.')}. Exclude the rule on all ranks, ignore=[{rule!r}], or pass "
        "the same example inputs on all ranks."
    )


def is_single_rank() -> bool:
    """Whether there are no other ranks."""
    return _store() is None


def this_rank() -> int:
    """The rank of this process; 0 without other ranks."""
    return 0 if is_single_rank() else dist.get_rank()


def sizes_of(call: Any) -> str:
    """The shapes of the tensors in a call, as a string."""
    return str([tuple(x.shape) for x in tensors_in(call, plain_parts)])


def _store() -> Any:
    """The store of the process group; None for a single rank and for the "fake" backend."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2 or dist.get_backend() == "fake":
        return None
    # The prefix separates the keys from those of other users of the store.
    default = get_default_store()
    return dist.PrefixStore("autofuse", default)  # type: ignore[attr-defined]


def _kind(training: bool, call: Any) -> str:
    """A key. It is equal for calls that differ only in shapes and contents of tensors."""
    return _digest((training, _kind_of(call)))


def _kind_of(x: Any) -> Hashable:
    if isinstance(x, Tensor):
        return str(x.dtype), x.dim(), x.requires_grad, is_distributed(x)
    if type(x) in (tuple, list):
        return tuple(map(_kind_of, x))
    if type(x) is dict:
        return tuple((str(k), _kind_of(v)) for k, v in x.items())
    return (type(x).__qualname__, repr(x)) if isinstance(x, (bool, str, type(None))) else type(x).__qualname__


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
