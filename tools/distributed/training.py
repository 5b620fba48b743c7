"""Trains ten steps, plain or wrapped, and compares the result with the exact one.

The exact result is a run of the plain model in double on the batches of all ranks. Runs with random rounding show how
much rounding may change it, as when autofuse verifies a site (autofuse.verify.bounds). Here the results are the losses
of all steps and the final parameters. This file does not depend on how a model was wrapped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

try:
    import peft
except ImportError:
    peft = None

from autofuse.verify.arithmetic import DoubleMode, RandomRoundingMode
from autofuse.verify.bounds import DRAWS, measure_gap, rounding_spread
from tools.distributed.model import LENGTH, VOCABULARY, Decoder
from tools.distributed.seen import Seen, count_fused

STEPS, BATCH, SEED = 10, 2, 20
RATE, MOMENTUM = 0.1, 0.9
WATCHED = STEPS - 1  # operators are counted in the last step, after every lazy capture


@dataclass(frozen=True)
class Recipe:
    """The options of training.

    Attributes:
        micro: the number of micro batches whose gradients are accumulated.
        clip: the norm to which gradients are clipped; None: no clipping.
        dtype: the coarsest dtype in use.
        adapters: whether only peft's low-rank adapters are trained.
    """

    micro: int = 1
    clip: float | None = None
    dtype: torch.dtype = torch.float32
    adapters: bool = False


@dataclass
class Ran:
    """The results on one rank: the loss of each micro batch, and the fused operators of one step."""

    losses: list[float] = field(default_factory=list)
    seen: Seen = field(default_factory=dict)


def batches(replica: int, micro: int) -> list[list[Tensor]]:
    """Return the tokens of each step and micro batch for one replica: (BATCH, LENGTH + 1), int64."""
    generator = torch.Generator().manual_seed(SEED + replica)
    shape = (BATCH, LENGTH + 1)
    return [[torch.randint(0, VOCABULARY, shape, generator=generator) for _ in range(micro)] for _ in range(STEPS)]


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), tokens[:, 1:].flatten())


Clip = Callable[[nn.Module, float], Any]
Quiet = Callable[[nn.Module, bool], AbstractContextManager[Any]]
Around = Callable[[str], AbstractContextManager[Any]]


def clip_plainly(model: nn.Module, norm: float) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), norm)


def always_in_step(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


def without_context(device: str) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


def trained(
    model: nn.Module, replica: int, recipe: Recipe, device: str,
    clip: Clip = clip_plainly, quiet: Quiet = always_in_step, around: Around = without_context,
    midway: Callable[[], None] = lambda: None,
) -> Ran:  # fmt: skip
    """Train `model` for STEPS steps.

    `around` is the context of each forward, and `midway` runs after half the steps.
    """
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE, momentum=MOMENTUM)
    ran = Ran()
    for step, micro in enumerate(batches(replica, recipe.micro)):
        if step == STEPS // 2:
            midway()
        with count_fused(ran.seen) if step == WATCHED else contextlib.nullcontext():
            for place, tokens in enumerate(micro):
                with quiet(model, place == len(micro) - 1):
                    with around(device):
                        loss = loss_of(model, tokens.to(device))
                    (loss / len(micro)).backward()
                ran.losses.append(loss.item())
        if recipe.clip is not None:
            clip(model, recipe.clip)
        optimizer.step()
        optimizer.zero_grad()
    return ran


@dataclass(frozen=True)
class Reached:
    """The losses (replicas, steps * micro), in double, and the parameters by name, after the last step."""

    losses: Tensor
    parameters: dict[str, Tensor]


class Truth:
    """The results in double, and with random rounding. Each recipe runs once."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Reached, list[Reached]]] = {}

    def of(self, replicas: int, recipe: Recipe) -> tuple[Reached, list[Reached]]:
        key = replicas, recipe
        if key not in self._known:
            unit = torch.finfo(recipe.dtype).eps / 2
            exact = self._run(replicas, recipe, None)
            self._known[key] = exact, [self._run(replicas, recipe, (unit, SEED + i)) for i in range(DRAWS)]
        return self._known[key]

    def _run(self, replicas: int, recipe: Recipe, rounding: tuple[float, int] | None) -> Reached:
        """Train on the mean of the losses of all replicas, as data parallelism does."""
        model = built(recipe).double()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE, momentum=MOMENTUM)
        mode = DoubleMode(recipe.dtype) if rounding is None else RandomRoundingMode(recipe.dtype, *rounding)
        data = [batches(r, recipe.micro) for r in range(replicas)]
        losses: list[list[float]] = [[] for _ in range(replicas)]
        for step in range(STEPS):
            for replica, own in enumerate(data):
                for tokens in own[step]:
                    with mode:
                        loss = loss_of(model, tokens)
                        (loss / (recipe.micro * replicas)).backward()
                    losses[replica].append(loss.item())
            if recipe.clip is not None:
                clip_plainly(model, recipe.clip)
            optimizer.step()
            optimizer.zero_grad()
        reached = {n: p.detach() for n, p in model.named_parameters()}
        return Reached(torch.tensor(losses, dtype=torch.float64), reached)


@dataclass(frozen=True)
class Comparison:
    """The largest difference of losses between two runs and the allowed one, in nats; and what is wrong, or ""."""

    difference: float
    allowed: float
    reason: str = ""


def compare_runs(
    plain: Reached, fused: Reached, exact: Reached, rounded: list[Reached], dtype: torch.dtype
) -> Comparison:
    """Check that losses and parameters of `fused` are as close to `exact` as `plain` and the rounded runs predict."""
    unit = torch.finfo(dtype).eps / 2
    spreads = [rounding_spread(r.losses, plain.losses, exact.losses) for r in rounded]
    found = measure_gap(fused.losses, plain.losses, exact.losses, unit, spreads)
    difference = float((plain.losses - fused.losses).abs().max())
    # the error of the optimized run is within the bound, and the plain run has its own error
    allowed = found.bound * float(exact.losses.abs().max()) + float((plain.losses - exact.losses).abs().max())
    if not found.within:
        return Comparison(
            difference, allowed, f"losses are off by {found.error:.1e}, rounding explains {found.bound:.1e}"
        )
    if plain.parameters.keys() != fused.parameters.keys():
        odd = sorted(plain.parameters.keys() ^ fused.parameters.keys())
        return Comparison(difference, allowed, f"only one of the two has the parameters {', '.join(odd[:3])}")
    for name, result in fused.parameters.items():
        if name not in exact.parameters:
            continue
        truth = exact.parameters[name]
        original = plain.parameters[name]
        spreads = [rounding_spread(r.parameters[name], original, truth) for r in rounded]
        found = measure_gap(result, original, truth, unit, spreads)
        if not found.within:
            why = f"{name} ends off by {found.error:.1e} of its largest entry, rounding explains {found.bound:.1e}"
            return Comparison(difference, allowed, why)
    return Comparison(difference, allowed)


def built(recipe: Recipe | None = None) -> nn.Module:
    """Return the model with its initial parameters, the same in every process, on the CPU, in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model: nn.Module = Decoder()
        if recipe is not None and recipe.adapters:
            config = peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
            model = peft.get_peft_model(model, config)
        return model
