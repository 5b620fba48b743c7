"""Checks that the parts of a setting exist and can be combined."""

from __future__ import annotations

from autofuse.profiling.plan.memory import OPTIMIZERS
from autofuse.profiling.plan.paper import Unplannable
from autofuse.profiling.plan.sharding import OFFLOADS, STRATEGIES
from autofuse.results.plan import Setting

DTYPES = ("float32", "bfloat16", "float16", "float64")
HALVES = ("bfloat16", "float16")


def check_setting(setting: Setting) -> None:
    """Check that every part of a setting is known, and that the parts can be combined.

    Raises:
        Unplannable: A part is unknown, or two parts cannot be combined. The message says what to pass.
    """
    for what, value, possible in (
        ("dtype", setting.dtype, ("", *DTYPES)), ("autocast", setting.autocast, ("", *HALVES)),
        ("optimizer", setting.optimizer, OPTIMIZERS), ("strategy", setting.strategy, STRATEGIES),
        ("offload", setting.offload, OFFLOADS),
    ):  # fmt: skip
        if value not in possible:
            raise Unplannable(f"There is no {what} {value!r}. Use one of {', '.join(filter(None, possible))}.")
    counts = ("devices", "tensor", "pipeline", "context", "microbatches")
    if least := next((name for name in counts if getattr(setting, name) < 1), ""):
        raise Unplannable(f"{least} must be 1 or more; got {getattr(setting, least)}.")
    if (setting.devices > 1) == (setting.strategy == "none"):
        raise Unplannable(
            f"devices={setting.devices} and strategy={setting.strategy!r} cannot be combined. Pass a strategy with "
            "several devices, and none with one device."
        )
    if setting.master and setting.dtype not in HALVES:
        raise Unplannable("Float32 master parameters need parameters in half precision: pass dtype bfloat16 too.")
    if setting.offload == "parameters" and setting.strategy not in ("fsdp", "hsdp"):
        raise Unplannable("Parameters are offloaded only with strategy fsdp or hsdp: pass one of them.")
