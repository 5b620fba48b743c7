"""The precision that a training loop runs in: float32 where the hardware is several times faster at less.

Tensor cores multiply matrices in TF32 or bfloat16. Either changes what is computed, so all of this is advice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.rule import Call, CallRule, Fused, Kept, Unknown, Verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# Words that say that precision has been thought of, here or by what runs the loop.
_OTHER_PRECISION = (
    "autocast bfloat16 float16 float64 half amp fp16 bf16 fp8 double GradScaler accelerate deepspeed "
    "lightning fabric ignite torch_xla"
).split()
_TF32 = ("matmul_precision", "allow_tf32", "fp32_precision")


def _in_full_precision(call: Call) -> bool:
    """Whether the file trains on a CUDA device and nowhere speaks of a precision."""
    trains = call.mentions("cuda") and call.reads("step")
    return bool(trains) and not call.mentions_word(*_OTHER_PRECISION) and not call.mentions("mixed_precision")


class FullPrecisionMatmuls(CallRule):
    """Training whose float32 matrix products keep off the tensor cores."""

    code = "AF603"
    calls = (".backward",)
    once = "file"
    hint = "cuda"

    @staticmethod
    def before(model: nn.Module, x: Tensor) -> Any:
        return model(x).backward()

    @staticmethod
    def after(model: nn.Module, x: Tensor) -> Any:
        torch.set_float32_matmul_precision("high")  # once, before training
        return model(x).backward()

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if not _in_full_precision(call) or call.mentions(*_TF32):
            return None
        return Unknown(
            "nothing in this file says that they may use them",
            advice='unless another file does, write `torch.set_float32_matmul_precision("high")` before training: '
            "factors are then rounded to 10 bits (TF32), sums are not",
        )

    examples = (
        Fused(
            "nothing is said about precision",
            before="""
                import torch

                def train(model, loader, optimizer):
                    model.cuda()
                    for x, y in loader:
                        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
            """,
        ),
        Kept(
            "TF32 is switched on",
            """
                import torch

                torch.backends.cuda.matmul.allow_tf32 = True

                def train(model, loader, optimizer):
                    for x, y in loader:
                        model(x.cuda(), y.cuda()).backward()
                        optimizer.step()
            """,
        ),
    )


class NoAutocast(CallRule):
    """A training loop on a GPU without autocast."""

    code = "AF604"
    calls = (".backward",)
    once = "file"
    hint = "cuda"

    @staticmethod
    def before(model: nn.Module, x: Tensor) -> Any:
        return model(x).backward()

    @staticmethod
    def after(model: nn.Module, x: Tensor) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x)
        return loss.backward()

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if not _in_full_precision(call):
            return None
        return Unknown(
            "everything runs in float32",
            advice='write `with torch.autocast("cuda", dtype=torch.bfloat16):` around the forward pass and the loss, '
            "not around backward(): matrix products then run in bfloat16, parameters and gradients stay float32",
        )

    examples = (
        Fused(
            "everything runs in float32",
            before="""
                import torch

                def train(model, loader, optimizer):
                    for x, y in loader:
                        loss = model(x.cuda(), y.cuda())
                        loss.backward()
                        optimizer.step()
            """,
        ),
        Kept(
            "the forward pass is autocast",
            """
                import torch

                def train(model, loader, optimizer):
                    for x, y in loader:
                        with torch.autocast("cuda", dtype=torch.bfloat16):
                            loss = model(x.cuda(), y.cuda())
                        loss.backward()
                        optimizer.step()
            """,
        ),
    )


class ScaledBfloat16(CallRule):
    """A GradScaler for bfloat16, whose exponents are those of float32."""

    code = "AF607"
    calls = ("torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.GradScaler")
    unless = ("enabled",)
    hint = "autocast"

    @staticmethod
    def before(scaler: Any, loss: Any) -> Any:
        return scaler.scale(loss).backward()

    @staticmethod
    def after(loss: Any) -> None:
        return loss.backward()

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if not call.mentions_word("bfloat16") or call.mentions_word("float16", "half", "fp16") or call.starred:
            return None
        return Unknown("its checks for infinities cost a pass over the gradients", advice="step without it")

    examples = (
        Fused(
            "bfloat16 does not underflow where float32 does not",
            before="""
                import torch

                scaler = torch.amp.GradScaler("cuda")

                def train(model, loader, optimizer):
                    for x, y in loader:
                        with torch.autocast("cuda", dtype=torch.bfloat16):
                            loss = model(x.cuda(), y.cuda())
                        scaler.scale(loss).backward()
                        scaler.step(optimizer)
                        scaler.update()
            """,
        ),
        Kept(
            "float16 needs one",
            """
                import torch

                scaler = torch.amp.GradScaler("cuda")

                def train(model, loader, optimizer):
                    for x, y in loader:
                        with torch.autocast("cuda", dtype=torch.float16):
                            loss = model(x.cuda(), y.cuda())
                        scaler.scale(loss).backward()
                        scaler.step(optimizer)
                        scaler.update()
            """,
        ),
    )
