"""A loop over the experts of a mixture -> one grouped product of rows that are sorted by expert.

A loop is not dataflow, so the rule matches the operation into which the FX pass turns the loop. See
autofuse/fx/trace/fold_experts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Captures, Fused, Holds, Kept, Rule, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from autofuse import ops


class LoopOverExperts(Rule):
    """A loop over experts that applies a linear layer of each."""

    code = "AF701"
    benefit = 4

    @staticmethod
    def before(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor, transposed: bool = False) -> Tensor:
        return ops.expert_linear(x, weight, bias, ends, transposed)

    @staticmethod
    def after(x: Tensor, weight: Tensor, bias: Tensor | None, ends: Tensor, transposed: bool = False) -> Tensor:
        return ops.grouped_linear(x, weight, bias, ends, transposed)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return Holds()

    examples = (
        Fused(
            "the rows of each expert are multiplied by its matrix, one expert after the other",
            before="""
                from autofuse import ops

                def up(x, weight, ends):
                    return ops.expert_linear(x, weight, None, ends)
            """,
            after="grouped_linear(",
        ),
        Kept(
            "one matrix for all rows is an ordinary linear layer",
            """
                import torch.nn.functional as F

                def up(x, weight):
                    return F.linear(x, weight)
            """,
        ),
    )
