"""Each reason about the values of an edit has a program, with the expected line and advice."""

from __future__ import annotations

import pytest

from autofuse.reasons import tensors
from autofuse.reasons.table import codes_of
from tests.reasons.programs import Refused, check, name_of, refused_finding

CASES = [
    Refused(
        "array-of-another-library",
        "import torch\nimport numpy as np\ndef f(x: np.ndarray):\n    return x * (x + 3).clip(0, 6) / 6",
        "", "", "AF306",
    ),
    Refused("text-is-shown", "s = q @ k.mT\nprint(f'{s.shape=}')\nreturn F.softmax(s, -1) @ v", "", "print only"),
    Refused(
        "otherwise-given",
        """
        import torch
        from torch import nn


        class Swish(nn.Module):
            def forward(self, x):
                return x * torch.sigmoid(x)


        print(Swish()(torch.arange(8)).shape)
        """,
        "Swish()(torch.arange(8))",
        "if no caller does so in your program, rewrite it by hand",
        "AF302",
    ),
    Refused(
        "vector-operand",
        "n = torch.arange(k.size(-2), dtype=q.dtype)\nreturn F.softmax(q @ k.mT / q.size(-1) ** 0.5, -1) @ n",
        "n = torch.arange(",
        "add a dimension to `n`, and remove it from the result",
    ),
    Refused(
        "not-floating-point",
        "n = torch.arange(q.size(-2))\nreturn n * torch.sigmoid(n)",
        "n = torch.arange(",
        "convert `n` to floating-point first, if that is intended",
        "AF302",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_reason_of_the_program_has_its_line_and_its_advice(case: Refused) -> None:
    check(refused_finding(case), case)


# No known program has this reason. It guards against a case that the writer cannot decide.
WITHOUT_PROGRAM = {"called-twice"}


def test_every_reason_about_values_has_a_program() -> None:
    assert {c.code for c in CASES} | WITHOUT_PROGRAM == {c.name for c in codes_of(tensors)}
