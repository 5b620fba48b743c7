"""What slows a training loop down at every step: float32 at full precision, and waiting for the device.

A GPU multiplies matrices several times faster in TF32 or bfloat16 than in float32. And Python runs ahead of it only
until it asks for a number: then the GPU stands still while Python prepares what comes next. Each of these changes what
is computed, or when it is seen, so all of them are advice.
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


class WaitsEveryStep(CallRule):
    """A number read from the device at every training step."""

    code = "AF606"
    calls = (
        *(".item", ".tolist", ".cpu", ".numpy", "float", "int", "bool", "print"),
        *(".set_postfix", ".set_description", ".add_scalar", "wandb.log", "math.isnan", "math.isfinite"),
    )
    once = "statement"
    hint = "backward"

    @staticmethod
    def before(total: Tensor, loss: Tensor) -> Tensor:
        return total + loss.item()

    @staticmethod
    def after(total: Tensor, loss: Tensor) -> Tensor:
        return total + loss.detach()

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if not call.reads_device or call.accelerator is False:
            return None
        waits = f"`{call.text}` waits for the device"
        if call.deferred:
            return Unknown(waits, advice=f"write `{call.deferred}`, and read the sum where it is shown")
        return Unknown(
            waits,
            advice="do it every N steps, as under `if step % 100 == 0:`, or collect tensors with `.detach()` and read "
            "them after the loop",
        )

    examples = (
        Fused(
            "a running loss",
            before="""
                import torch

                def train(model, loader, optimizer):
                    running = 0.0
                    for x, y in loader:
                        loss = model(x.cuda(), y.cuda())
                        loss.backward()
                        optimizer.step()
                        running += loss.item()
                    return running / len(loader)
            """,
        ),
        Kept(
            "now and then",
            """
                import torch

                def train(model, loader, optimizer):
                    for step, (x, y) in enumerate(loader):
                        loss = model(x.cuda(), y.cuda())
                        loss.backward()
                        optimizer.step()
                        if step % 100 == 0:
                            print(loss.item())
            """,
        ),
        Kept(
            "evaluation needs its numbers",
            """
                import torch

                @torch.no_grad()
                def evaluate(model, loader):
                    return sum(model(x.cuda(), y.cuda()).item() for x, y in loader)
            """,
        ),
    )


class HaltsEveryStep(CallRule):
    """A training step that empties the allocator's cache or waits for the device."""

    code = "AF606"
    calls = ("torch.cuda.empty_cache", "torch.cuda.synchronize")
    hint = "backward"

    @staticmethod
    def before(loss: Any) -> None:
        loss.backward()
        torch.cuda.empty_cache()

    @staticmethod
    def after(loss: Any) -> None:
        loss.backward()

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if not call.each_step or call.mentions_word("perf_counter", "time", "Event", "timeit"):
            return None
        return Unknown(
            f"`{call.text}` lets the GPU run dry",
            advice="leave it out: neither results nor peak memory depend on it",
        )

    examples = (
        Fused(
            "the cache is emptied after every step",
            before="""
                import torch

                def train(model, loader, optimizer):
                    for x, y in loader:
                        model(x.cuda(), y.cuda()).backward()
                        optimizer.step()
                        torch.cuda.empty_cache()
            """,
        ),
        Kept(
            "once an epoch",
            """
                import torch

                def train(model, loader, optimizer, epochs):
                    for _ in range(epochs):
                        for x, y in loader:
                            model(x.cuda(), y.cuda()).backward()
                            optimizer.step()
                        torch.cuda.empty_cache()
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
