"""Optimizers that launch several kernels for every parameter -> the same ones, fused: a handful for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.rule import Captures, Fused, Holds, Kept, Rule, Verdict

if TYPE_CHECKING:
    import torch


class UnfusedAdam(Rule):
    """Adam without `fused=True`."""

    code = "AF601"
    calls = ("torch.optim.Adam", "torch.optim.AdamW")
    unless = ("fused", "foreach", "capturable", "differentiable")

    @staticmethod
    def before(params: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, **options)

    @staticmethod
    def after(params: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, fused=True, **options)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return Holds("safe", "assumes torch 2.4 or later, and parameters on a CPU, CUDA, XPU or MPS device")

    examples = (
        Fused(
            "nothing is said about how the update runs",
            before="""
                import torch

                def optimizer_of(model):
                    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
            """,
            after="torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)",
        ),
        Kept(
            "the author chose another implementation",
            """
                import torch

                def optimizer_of(model):
                    return torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
            """,
        ),
        Kept(
            "the options are not written here",
            """
                import torch

                def optimizer_of(model, **options):
                    return torch.optim.AdamW(model.parameters(), **options)
            """,
        ),
    )


class UnfusedSgd(Rule):
    """SGD or Adagrad without `fused=True`."""

    code = "AF601"
    calls = ("torch.optim.SGD", "torch.optim.Adagrad")
    unless = ("fused", "foreach", "differentiable")

    @staticmethod
    def before(params: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, **options)

    @staticmethod
    def after(params: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, fused=True, **options)

    @staticmethod
    def where(captures: Captures) -> Verdict:
        return Holds("unsafe", "assumes that no gradient is sparse, as those of `nn.Embedding(sparse=True)` are")

    examples = (
        Fused(
            "nothing is said about how the update runs",
            before="""
                from torch.optim import SGD

                def optimizer_of(model):
                    return SGD(model.parameters(), lr=0.1, momentum=0.9)
            """,
            after="SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)",
        ),
        Kept(
            "a class of the same name that is not torch's",
            """
                import torch
                from mine import SGD

                def optimizer_of(model):
                    return SGD(model.parameters(), lr=0.1)
            """,
        ),
    )
