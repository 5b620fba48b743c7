"""Mixture of experts: what a loop over experts computes, on rows sorted by expert.

A loop is no dataflow, so the rule sees what the live door has made of one: autofuse/fx/trace/fold_experts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Captures, Fused, Holds, Kept, Rule, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from autofuse import ops


class LoopOverExperts(Rule):
    """A linear layer of each expert, in a loop over experts."""

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
            "each expert's rows are multiplied by its matrix, one expert after the other",
            before="""
                from autofuse import ops

                def up(x, weight, ends):
                    return ops.expert_linear(x, weight, None, ends)
            """,
            after="grouped_linear(",
        ),
        Kept(
            "one matrix for all rows is no layer of experts",
            """
                import torch.nn.functional as F

                def up(x, weight):
                    return F.linear(x, weight)
            """,
        ),
    )
