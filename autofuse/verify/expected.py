"""The runs of an original module in one mode: as written, in double, with random rounding, and with dropout.

Each run is made on first use. To save memory, random runs keep only sizes, and two modes with equal runs share their
tensors: a check needs several times the memory of its module. This file runs one module and compares nothing with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from autofuse.torch_private.autocast import is_autocast_on
from autofuse.verify import bounds
from autofuse.verify.arithmetic import AsWrittenMode, DoubleMode, RandomRoundingMode
from autofuse.verify.bounds import RoundingSpread, rounding_spread, row_averages
from autofuse.verify.differences import are_equal_runs
from autofuse.verify.draws import DRAWS, DropoutSample, measure_dropout
from autofuse.verify.out_of_memory import reraise_if_out_of_memory
from autofuse.verify.runs import SEED, SMALL, ModuleCall, ModuleRun, results_with_dropout, run, temporary_double_copy

# Two constants that agree in single precision count as equal, because a traced tensor may have that dtype.
# In a double model a constant may be a rounded decimal: 0.79788456 for sqrt(2 / pi), with a relative error of 1e-9.
SAME_CONSTANT, _SAME_DECIMAL = 2.0**-24, 1e-9

RoundingSpreads = Mapping[str, RoundingSpread]


class ExpectedRuns:
    """The runs of the original in one mode, training or evaluation."""

    def __init__(self, module: nn.Module, call: ModuleCall, training: bool, other: ExpectedRuns | None) -> None:
        self.module, self.call, self.training = module, call, training
        self.own = run(module, call, training, AsWrittenMode(), masks_too=False)
        self.dtype = _coarsest_dtype(module, self.own)
        self.unit = _SAME_DECIMAL if self.dtype is torch.float64 else torch.finfo(self.dtype).eps / 2
        self._other = other if other and are_equal_runs(self.own, other.own) else None
        if self._other:
            self.own = self.own.share_tensors(self._other.own)
        self._rounding_spreads: dict[float, list[RoundingSpreads]] = {}
        self._row_errors: dict[str, float] = {}  # the largest average error of a row in the randomly rounded runs
        self._dropout_samples: list[DropoutSample] = []

    @cached_property
    def exact(self) -> ModuleRun | None:
        """The run in double; None if the forward does not run in double."""
        if self.dtype is torch.float64:
            return self.own
        return self._other.exact if self._other else run_in_double(self.module, self)

    def release_if_large(self) -> None:
        """Release the run in double; it is made again on the next use."""
        exact = self.__dict__.get("exact")
        if exact is not None and exact is not self.own and exact.bytes > SMALL:
            del self.__dict__["exact"]

    def draws(self) -> Iterator[DropoutSample]:
        """Yield runs with dropout; each is made once."""
        for i in range(DRAWS):
            if i == len(self._dropout_samples):
                self._dropout_samples.append(sample_dropout(self.module, self, SEED + i))
            yield self._dropout_samples[i]

    def differs_by_mode(self) -> bool:
        """Whether this mode differs from the other one in more than dropout."""
        return self._other is None

    def rounded(self, unit: float) -> list[RoundingSpreads]:
        """Return the errors of each tensor and gradient in some runs with random rounding to `unit`."""
        if self._other:
            return self._other.rounded(unit)
        if unit not in self._rounding_spreads:
            modes = [RandomRoundingMode(self.dtype, unit, SEED + i) for i in range(bounds.DRAWS)]
            with temporary_double_copy(self.module, self.call.copy_module) as module:
                self._rounding_spreads[unit] = [
                    self._spreads(run(module, self.call, self.training, mode)) for mode in modes
                ]
        return self._rounding_spreads[unit]

    def original_error(self, name: str) -> float | None:
        """Return the error of a result or gradient, relative to its largest entry; None if it is missing.

        This is the largest error so far: that of the original, and those of the randomly rounded runs.
        """
        if self.exact is None or (exact := self.exact.find_tensor(name)) is None:
            return None
        size = _largest_entry(exact)
        source = self._other or self
        errors = [
            s[name].largest / (size or 1.0) for runs in source._rounding_spreads.values() for s in runs if name in s
        ]
        own = self.own.find_tensor(name)
        if own is not None and own.shape == exact.shape:
            errors.append(_largest_entry(own.detach() - exact.detach()) / (size or 1.0))
        return max(errors, default=None)

    def original_row_error(self, name: str) -> tuple[float, float] | None:
        """Return the largest average error of a row and the largest average of a row, relative to the largest entry.

        As in `original_error`, the error is also that of the randomly rounded runs. None if there are no long rows.
        """
        exact = None if self.exact is None else self.exact.find_tensor(name)
        own = self.own.find_tensor(name)
        if exact is None or own is None or own.shape != exact.shape or (rows := row_averages(exact)) is None:
            return None
        size, error = _largest_entry(exact) or 1.0, row_averages(own.detach() - exact.detach())
        found = (self._other or self)._row_errors.get(name, 0.0)
        return max(found, _largest_entry(error)) / size, _largest_entry(rows) / size  # type: ignore[arg-type]

    def _spreads(self, rounded: ModuleRun) -> RoundingSpreads:
        assert self.exact is not None
        names = (*self.exact.tensors, *(f"gradient of {n}" for n in self.exact.gradients))
        spreads: dict[str, RoundingSpread] = {}
        for name in names:
            exact_tensor = self.exact.find_tensor(name)
            template = rounded.find_tensor(name) if exact_tensor is None else exact_tensor
            if template is not None:
                exact = tensor_or_zeros(self.exact, name, template)
                original = exact if self.own.lacks(name) else tensor_or_zeros(self.own, name, exact)
                found = tensor_or_zeros(rounded, name, exact)
                spreads[name] = rounding_spread(found, original, exact)
                if (rows := row_averages(found - exact)) is not None:
                    self._row_errors[name] = max(self._row_errors.get(name, 0.0), _largest_entry(rows))
        return spreads


def run_in_double(module: nn.Module, expected: ExpectedRuns) -> ModuleRun | None:
    """Run the call of `expected` on a double copy of `module`; return None if its forward does not run in double."""
    try:
        with temporary_double_copy(module, expected.call.copy_module) as double:
            return run(double, expected.call, expected.training, DoubleMode(expected.dtype))
    except Exception as error:  # for instance a kernel without a double version
        reraise_if_out_of_memory(error)
        return None


def sample_dropout(module: nn.Module, expected: ExpectedRuns, seed: int) -> DropoutSample:
    """Run the call of `expected` on `module` with dropout, and compare the result with the original without dropout."""
    return measure_dropout(results_with_dropout(module, expected.call, expected.training, seed), expected.own.tensors)


def tensor_or_zeros(run: ModuleRun, name: str, like: Tensor) -> Tensor:
    """Return a tensor or gradient of a run; a missing gradient is zero."""
    t = run.find_tensor(name)
    return torch.zeros_like(like) if t is None else t


def _largest_entry(x: Tensor) -> float:
    """The largest absolute entry; infinities and NaN count as 0."""
    return float(x.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) if x.numel() else 0.0


def _coarsest_dtype(module: nn.Module, run_as_written: ModuleRun) -> torch.dtype:
    """The dtype with the greatest eps among parameters, results, gradients and the autocast dtype."""
    tensors = (*module.parameters(), *run_as_written.tensors.values(), *run_as_written.gradients.values())
    dtypes = {t.dtype.to_real() for t in tensors if t is not None and (t.is_floating_point() or t.is_complex())}
    for device in {t.device.type for t in tensors if t is not None}:
        if is_autocast_on(device):
            dtypes.add(torch.get_autocast_dtype(device))
    return max(dtypes or {torch.get_default_dtype()}, key=lambda dtype: torch.finfo(dtype).eps)
