"""Synchronization in a training loop at every step.

Python runs ahead of the GPU until it reads a number from it. After that, the GPU idles until Python launches the next
kernels. The author decides when a number is needed, so these rules only give advice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.rule import Call, CallRule, Fused, Kept, Unknown, Verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class WaitsEveryStep(CallRule):
    """A training loop that reads a number from the device at every step."""

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
            return Unknown(waits, advice=f"write `{call.deferred}`, and read the sum when it is shown")
        return Unknown(
            waits,
            advice="do it every N steps, under `if step % 100 == 0:`, or collect tensors with `.detach()` and read "
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
            "the loss is printed at every 100th step",
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
            "evaluation is not training",
            """
                import torch

                @torch.no_grad()
                def evaluate(model, loader):
                    return sum(model(x.cuda(), y.cuda()).item() for x, y in loader)
            """,
        ),
    )


class HaltsEveryStep(CallRule):
    """A training loop that empties the allocator's cache or waits for the device at every step."""

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
            f"the GPU idles after `{call.text}`",
            advice="remove it: neither results nor peak memory depend on it",
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
            "the cache is emptied once for each epoch",
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
