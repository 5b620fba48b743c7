"""Models and steps on paper: fake tensors without numbers, so that nothing is computed or allocated."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.kernels.operation import on_paper
from autofuse.profiling.live.batch_size import batch_of
from autofuse.profiling.live.factories import BuiltModel, NoSubject, built_model_of, find_factory
from autofuse.torch_private import LOCAL_SCALAR_DENSE, FakeTensorMode, TorchDispatchMode, pytree


class Unplannable(ValueError):
    """Something cannot be planned. The message says what, and what to do."""


class Paper:
    """Holds models without numbers. Everything that is created `in_use` is fake, and on a CPU."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Creates fake tensors in the block. Fused operations choose the kernels that real tensors would get."""
        with self._mode, on_paper():
            yield

    def load(self, target: str) -> BuiltModel:
        """Calls a factory on paper. If that fails, calls it on real tensors.

        Raises:
            NoSubject: no such factory exists, or it ended the program.
            Exception: whatever the factory raises.
        """
        factory = find_factory(
            target
        )  # imported with real tensors, because other code also uses what a module creates at import
        try:
            with self.in_use(), _Undecided():  # type: ignore[no-untyped-call]
                return self._require_model(built_model_of(factory(), target))
        except NoSubject:
            raise
        except Exception:  # the factory may have read numbers
            return self._require_model(built_model_of(factory(), target))
        except SystemExit as error:
            raise NoSubject(f"{target} ended the program, with exit code {error.code}.") from error

    def _require_model(self, built: BuiltModel) -> BuiltModel:
        if not isinstance(built.subject, nn.Module) or built.inputs is None:
            raise Unplannable(
                f"{built.name} returns no model with inputs. Return both: nothing can be planned without a model."
            )
        return built

    def model(self, model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        """A copy without numbers, with floating parameters and buffers in `dtype`. Tied parameters stay tied."""
        with self.in_use():
            memo: dict[int, Any] = {}
            for tensor in (*model.parameters(), *model.buffers()):
                memo[id(tensor)] = self._fake_tensor(tensor, dtype)
            return copy.deepcopy(model, memo)

    def inputs(self, inputs: Any, batch: int | None, sequence: int | None, dtype: torch.dtype | None) -> Any:
        """The same inputs without numbers, in other sizes.

        The batch is the first dimension of every tensor. The sequence is the second dimension of tokens, and every
        dimension of the same size in that place, or in the last two places, as in masks.

        Raises:
            Unplannable: the inputs do not show which dimension is which.
        """
        known = batch_of(inputs)
        length = None if known.tokens is None or not known.samples else known.tokens // known.samples
        if batch is not None and known.samples is None or sequence is not None and length is None:
            raise Unplannable(
                "The inputs do not show which of their dimensions is the batch and which the sequence: only a tensor "
                "of whole numbers (samples, positions) shows it. Build the inputs in the size that you plan."
            )

        def resized(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            shape = list(x.shape)
            if sequence is not None:
                shape = [sequence if n == length and _is_position(i, shape) else n for i, n in enumerate(shape)]
            if batch is not None and shape and shape[0] == known.samples:
                shape[0] = batch
            cast = dtype if dtype is not None and x.is_floating_point() else x.dtype
            return torch.empty(shape, dtype=cast, requires_grad=x.requires_grad)

        with self.in_use():
            return pytree.tree_map(resized, inputs)

    def _fake_tensor(self, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        cast = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        fake: Tensor = torch.empty_strided(tensor.shape, tensor.stride(), dtype=cast)
        if not isinstance(tensor, nn.Parameter):
            return fake
        parameter = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        known = vars(parameter)  # a fake tensor keeps its device and its mode in its own attributes
        known.update({name: value for name, value in vars(tensor).items() if name not in known})
        return parameter


class _Undecided(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While a model is built, the truth value of an unknown number is False, so that loops of initializers end."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is LOCAL_SCALAR_DENSE and args[0].dtype is torch.bool:
            return False
        return func(*args, **(kwargs or {}))


def _is_position(index: int, shape: list[int]) -> bool:
    return index == 1 or (len(shape) > 2 and shape[-1] == shape[-2] and index >= len(shape) - 2)
