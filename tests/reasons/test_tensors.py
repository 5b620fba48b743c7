"""Each reason about the values of an edit is given for a program, with its line and its advice."""

from __future__ import annotations

import pytest

from autofuse.reasons import tensors
from autofuse.reasons.table import codes_of
from tests.reasons.programs import Refused, check, found_in_text, name_of

CASES = [
    Refused(
        "array-of-another-library",
        "import torch\nimport numpy as np\ndef f(x: np.ndarray):\n    return x * (x + 3).clip(0, 6) / 6",
        "", "", "AF306",
    ),
    Refused("text-is-shown", "s = q @ k.mT\nprint(f'{s.shape=}')\nreturn F.softmax(s, -1) @ v", "", "print the value"),
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
        "rewrite it by hand where no caller does so",
        "AF302",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_reason_is_given_for_a_program(case: Refused) -> None:
    check(found_in_text(case), case)


# No program is known that gives this: it keeps what is written right where the writer cannot tell.
UNREACHED = {"called-twice"}


def test_every_reason_about_values_is_given_for_a_program() -> None:
    assert {c.code for c in CASES} | UNREACHED == {c.name for c in codes_of(tensors)}
