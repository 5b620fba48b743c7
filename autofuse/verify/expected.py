"""What an original computes in one mode: as written, in double, under random rounding, and with dropout.

Each run is made when it is first asked for. Of runs that are rounded at random only sizes are kept, and of two modes
that leave the same behind one is: a check holds several times the memory of its module as it is.
Knows runs of one module; must not know what is compared with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from autofuse.verify import bounds
from autofuse.verify.arithmetic import AsWritten, InDouble, RandomlyRounded
from autofuse.verify.bounds import RoundingSpread, spread_of
from autofuse.verify.differences import equal
from autofuse.verify.draws import DRAWS, Draw, draw
from autofuse.verify.out_of_memory import pass_on_if_out_of_memory
from autofuse.verify.runs import SEED, SMALL, ModuleCall, ModuleRun, doubled, drawn, run

# Constants that are one number in single precision are one constant: a traced tensor may have been made in it. In a
# model of doubles they may still be decimals: 0.79788456 is written for sqrt(2 / pi), and 1e-9 of it away.
SAME_CONSTANT, _SAME_DECIMAL = 2.0**-24, 1e-9

RoundingSpreads = Mapping[str, RoundingSpread]


class Expected:
    """What the original computes in one mode."""

    def __init__(self, module: nn.Module, call: ModuleCall, training: bool, other: Expected | None) -> None:
        self.module, self.call, self.training = module, call, training
        self.own = run(module, call, training, AsWritten(), masks_too=False)
        self.dtype = _coarsest(module, self.own)
        self.unit = _SAME_DECIMAL if self.dtype is torch.float64 else torch.finfo(self.dtype).eps / 2
        self._other = other if other and equal(self.own, other.own) else None
        if self._other:
            self.own = self.own.held_with(self._other.own)
        self._rounded: dict[float, list[RoundingSpreads]] = {}
        self._drawn: list[Draw] = []

    @cached_property
    def exact(self) -> ModuleRun | None:
        """In double; None where the forward does not run in it."""
        if self.dtype is torch.float64:
            return self.own
        return self._other.exact if self._other else run_in_double(self.module, self)

    def forget_if_large(self) -> None:
        """Give back the run in double, which is made again where it is asked for."""
        held = self.__dict__.get("exact")
        if held is not None and held is not self.own and held.bytes > SMALL:
            del self.__dict__["exact"]

    def draws(self) -> Iterator[Draw]:
        """With dropout; each is made once."""
        for i in range(DRAWS):
            if i == len(self._drawn):
                self._drawn.append(drawn_by(self.module, self, SEED + i))
            yield self._drawn[i]

    def depends_on_mode(self) -> bool:
        """Whether this mode differs from the other in more than dropout."""
        return self._other is None

    def rounded(self, unit: float) -> list[RoundingSpreads]:
        """What each tensor and gradient is off by in some runs in which each step is rounded at random to `unit`."""
        if self._other:
            return self._other.rounded(unit)
        if unit not in self._rounded:
            modes = [RandomlyRounded(self.dtype, unit, SEED + i) for i in range(bounds.DRAWS)]
            with doubled(self.module, self.call.copy_module) as module:
                self._rounded[unit] = [self._spreads(run(module, self.call, self.training, mode)) for mode in modes]
        return self._rounded[unit]

    def error_of(self, name: str) -> float | None:
        """What a result or gradient errs by, of its largest entry; None where there is none.

        The largest of what was found so far: its own error, and that of the runs that were rounded at random.
        """
        if self.exact is None or (truth := self.exact.named(name)) is None:
            return None
        size = _largest(truth)
        known = self._other or self
        errors = [s[name].largest / (size or 1.0) for runs in known._rounded.values() for s in runs if name in s]
        own = self.own.named(name)
        if own is not None and own.shape == truth.shape:
            errors.append(_largest(own.detach() - truth.detach()) / (size or 1.0))
        return max(errors, default=None)

    def _spreads(self, rounded: ModuleRun) -> RoundingSpreads:
        assert self.exact is not None
        names = (*self.exact.tensors, *(f"gradient of {n}" for n in self.exact.gradients))
        found: dict[str, RoundingSpread] = {}
        for name in names:
            one = self.exact.named(name)
            like = rounded.named(name) if one is None else one
            if like is not None:
                truth = tensor_of(self.exact, name, like)
                original = truth if self.own.lacks(name) else tensor_of(self.own, name, truth)
                found[name] = spread_of(tensor_of(rounded, name, truth), original, truth)
        return found


def run_in_double(module: nn.Module, expected: Expected) -> ModuleRun | None:
    """The call of `expected` on a copy of `module` in double; None where its forward does not run in it."""
    try:
        with doubled(module, expected.call.copy_module) as double:
            return run(double, expected.call, expected.training, InDouble(expected.dtype))
    except Exception as error:  # a kernel or a check that has no double
        pass_on_if_out_of_memory(error)
        return None


def drawn_by(module: nn.Module, expected: Expected, seed: int) -> Draw:
    """The call of `expected` on `module` with dropout, beside what the original gives without."""
    return draw(drawn(module, expected.call, expected.training, seed), expected.own.tensors)


def tensor_of(run: ModuleRun, name: str, like: Tensor) -> Tensor:
    """A tensor or gradient of a run; no gradient is a gradient of zero."""
    t = run.named(name)
    return torch.zeros_like(like) if t is None else t


def _largest(x: Tensor) -> float:
    """The largest entry; what is not finite counts as nothing."""
    return float(x.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if x.numel() else 0.0


def _coarsest(module: nn.Module, own: ModuleRun) -> torch.dtype:
    """The dtype with the greatest eps among parameters, results and gradients, and autocast's."""
    tensors = (*module.parameters(), *own.tensors.values(), *own.gradients.values())
    dtypes = {t.dtype.to_real() for t in tensors if t is not None and (t.is_floating_point() or t.is_complex())}
    for device in {t.device.type for t in tensors if t is not None}:
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            dtypes.add(torch.get_autocast_dtype(device))
    return max(dtypes or {torch.get_default_dtype()}, key=lambda d: torch.finfo(d).eps)
