"""The precision of a training loop: float32, although the hardware is several times faster in lower precision.

Tensor cores multiply matrices in TF32 or bfloat16. Both change the results, so these rules only give advice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.rule import Call, CallRule, Fused, Kept, Unknown, Verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# Words which show that the author has chosen a precision, or that a library runs the loop and chooses it.
_OTHER_PRECISION = (
    "autocast bfloat16 float16 float64 half amp fp16 bf16 fp8 double GradScaler accelerate deepspeed "
    "lightning fabric ignite torch_xla"
).split()
_TF32 = ("matmul_precision", "allow_tf32", "fp32_precision")


def _in_full_precision(call: Call) -> bool:
    """Whether the file trains on a CUDA device and mentions no precision."""
    trains = call.mentions("cuda") and call.reads("step")
    return bool(trains) and not call.mentions_word(*_OTHER_PRECISION) and not call.mentions("mixed_precision")


class FullPrecisionMatmuls(CallRule):
    """Training with float32 matrix products that do not use tensor cores."""

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
            "nothing in this file allows TF32",
            advice='unless another file allows it, write `torch.set_float32_matmul_precision("high")` before training: '
            "factors are then rounded to 10 bits of mantissa (TF32), and sums stay float32",
        )

    examples = (
        Fused(
            "the file sets no precision",
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
            "TF32 is allowed already",
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
            "not around backward(): matrix products then run in bfloat16, and parameters and gradients stay float32",
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
            "the forward pass uses autocast already",
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
    """A GradScaler for bfloat16, which has the exponent range of float32 and needs no loss scaling."""

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
        return Unknown(
            "its check for infinities costs a pass over the gradients",
            advice="call `loss.backward()` and `optimizer.step()` without it",
        )

    examples = (
        Fused(
            "bfloat16 underflows no earlier than float32",
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
            "float16 needs a GradScaler",
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
