"""Checks that the parts of a setting exist and go together."""

from __future__ import annotations

from autofuse.profiling.plan.memory import OPTIMIZERS
from autofuse.profiling.plan.paper import Unplannable
from autofuse.profiling.plan.sharding import OFFLOADS, STRATEGIES
from autofuse.results.plan import Setting

DTYPES = ("float32", "bfloat16", "float16", "float64")
HALVES = ("bfloat16", "float16")


def check_setting(setting: Setting) -> None:
    """Raises Unplannable, with a sentence, for a part that is unknown and for parts that do not go together."""
    for what, value, possible in (
        ("dtype", setting.dtype, ("", *DTYPES)), ("autocast", setting.autocast, ("", *HALVES)),
        ("optimizer", setting.optimizer, OPTIMIZERS), ("strategy", setting.strategy, STRATEGIES),
        ("offload", setting.offload, OFFLOADS),
    ):  # fmt: skip
        if value not in possible:
            raise Unplannable(f"There is no {what} {value!r} to plan for: {', '.join(filter(None, possible))}.")
    counts = ("devices", "tensor", "pipeline", "context", "microbatches")
    if least := next((name for name in counts if getattr(setting, name) < 1), ""):
        raise Unplannable(f"{least} is 1 or more; got {getattr(setting, least)}.")
    if (setting.devices > 1) == (setting.strategy == "none"):
        raise Unplannable(
            f"{setting.devices} devices and strategy {setting.strategy!r} do not go together: several devices take a "
            "strategy, and a strategy several devices."
        )
    if setting.master and setting.dtype not in HALVES:
        raise Unplannable("Float32 master parameters go with parameters in half precision: pass dtype bfloat16 too.")
    if setting.offload == "parameters" and setting.strategy not in ("fsdp", "hsdp"):
        raise Unplannable("Parameters are offloaded together with strategy fsdp or hsdp.")
