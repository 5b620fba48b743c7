"""Out-of-memory errors are recognized, and never count as a difference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autofuse.verify.modules import verify
from autofuse.verify.out_of_memory import is_out_of_memory


@pytest.mark.parametrize(("error", "expected"), [
    (torch.OutOfMemoryError("CUDA out of memory."), True),
    (MemoryError(), True),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
    (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    (ValueError("memory"), False),
])  # fmt: skip
def test_out_of_memory_errors_are_recognized(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


class Runs(nn.Module):
    """Runs out of memory at call number `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), [at]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] -= 1
        if self.calls[0] == 0:
            raise torch.OutOfMemoryError("out of memory")
        made: Tensor = self.linear(x)
        return made


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_check_that_runs_out_of_memory_gives_no_verdict(at: int) -> None:
    plain = Runs(0)
    rewritten = Runs(at)
    rewritten.linear = plain.linear
    with pytest.raises(torch.OutOfMemoryError):
        verify(plain, rewritten, (torch.randn(2, 4),))
        verify(rewritten, plain, (torch.randn(2, 4),))
