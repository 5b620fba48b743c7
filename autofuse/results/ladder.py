"""The levels of utilisation: how much of the machine a training step uses. Names, order, formulas.

Each level asks a stricter question than the one before it. Whatever shows, computes or compares levels takes their
names and their order from here. Do not decide a change by a level: time and memory decide. FlashAttention is fastest at
an occupancy of 13 %.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LevelKind:
    """One level of utilisation.

    Attributes:
        name: its key in JSON.
        title: its name for people.
        formula: how the number is computed.
        source: what it is computed from.
        get: what to do if the number is not available on this machine.
        above: the level from which its loss is counted; "" for the whole step.
    """

    name: str
    title: str
    formula: str
    source: str
    get: str
    above: str | None = None  # None: no loss, because the level is not a part of another one

    @property
    def gpu(self) -> bool:
        """Whether only GPUs have this level."""
        return self.name not in _ANYWHERE


_ANYWHERE = ("busy", "hfu", "mfu", "ideal")
ON_CPU = "the step ran on a CPU, and only GPUs have it"

_TRACE = "take a trace on the GPU: autofuse.profile there, or `autofuse profile --trace trace.json` with a Kineto trace"
_DCGM = "start NVIDIA's DCGM host engine (nv-hostengine) on the machine and profile again"
_NCU = (
    "profile a few kernels with Nsight Compute (ncu --set full --csv) and pass the report with a trace: "
    "--trace trace.json --ncu report.csv"
)

LEVELS: tuple[LevelKind, ...] = (
    LevelKind(
        "busy", "busy time", "union of the intervals in which a kernel runs / step time",
        "kernels of a trace (on a CPU, operators); what nvidia-smi calls utilisation", _TRACE, "",
    ),
    LevelKind(
        "sm_efficiency", "estimated SM efficiency",
        "sum over kernels of min(blocks / SMs, 1) x duration / step time",
        "launch shapes in a trace, number of SMs from its device properties", _TRACE, "busy",
    ),
    LevelKind(
        "occupancy", "estimated achieved occupancy",
        "min(blocks / SMs, resident blocks per SM) x threads per block / threads an SM can hold, "
        "averaged over kernel time",
        "launch shapes, registers and shared memory in a trace", _TRACE, None,
    ),
    LevelKind(
        "tensor_share", "time in tensor-core kernels", "time of kernels that use tensor cores / step time",
        "kernel names in a trace", _TRACE, "busy",
    ),
    LevelKind("sm_active", "SM activity", "cycles with a warp on the SM / elapsed", "DCGM field 1002", _DCGM),
    LevelKind("sm_occupancy", "SM occupancy", "resident warps / the most that fit", "DCGM field 1003", _DCGM),
    LevelKind("tensor_active", "tensor pipe activity", "cycles of the tensor pipe / elapsed", "DCGM field 1004", _DCGM),
    LevelKind("dram_active", "DRAM activity", "cycles moving data / elapsed", "DCGM field 1005", _DCGM),
    LevelKind("fp64_active", "FP64 pipe activity", "cycles of the pipe / elapsed", "DCGM field 1006", _DCGM),
    LevelKind("fp32_active", "FP32 pipe activity", "cycles of the pipe / elapsed", "DCGM field 1007", _DCGM),
    LevelKind("fp16_active", "FP16 pipe activity", "cycles of the pipe / elapsed", "DCGM field 1008", _DCGM),
    LevelKind(
        "issue_slots", "issue slots used", "cycles in which a sub-partition issues / its active cycles",
        "Nsight Compute: smsp__issue_active", _NCU,
    ),
    LevelKind(
        "sub_partitions", "SM sub-partitions active", "active cycles of the sub-partitions / elapsed cycles",
        "Nsight Compute: smsp__cycles_active", _NCU,
    ),
    LevelKind(
        "hfu", "hardware FLOPs utilisation (HFU)", "FLOPs executed, recomputation included / step time / peak FLOP/s",
        "torch.utils.flop_counter on one step; the peak from the device table or measured",
        "profile a model that runs here; a trace of a GPU shows FLOPs only if shapes were recorded", "busy",
    ),
    LevelKind(
        "mfu", "model FLOPs utilisation (MFU)", "FLOPs that the model asks for / step time / peak FLOP/s",
        "the count of the original model, the same before and after fusion",
        "profile a model that runs here; a trace alone contains no FLOPs", "hfu",
    ),
    LevelKind(
        "ideal", "share of the ideal step", "sum of max(FLOPs / peak, bytes / bandwidth) of every operator / step time",
        "FLOPs and bytes counted on one step; peaks from the device table or measured",
        "profile a model that runs here; a trace alone contains neither FLOPs nor bytes", "busy",
    ),
)  # fmt: skip

KINDS = {kind.name: kind for kind in LEVELS}


@dataclass(frozen=True)
class Level:
    """One level of one profile.

    Attributes:
        value: a fraction of 1; None if it is unknown.
        basis: the source of the number, for example "3 steps of the trace".
        reason: why there is no value.
        loss: how much lower the value is than that of the level above it, as a fraction of the step; None if the level
            has no loss.
        at_most: whether the value is an upper bound.
    """

    name: str
    value: float | None = None
    basis: str = ""
    reason: str = ""
    loss: float | None = None
    at_most: bool = False

    @property
    def kind(self) -> LevelKind:
        """The kind of the level. A level that a later version of autofuse added has only its name."""
        return KINDS.get(self.name) or LevelKind(self.name, self.name, "", "", "")


def ladder(known: dict[str, Level], missing: str) -> tuple[Level, ...]:
    """Every level in order: the known ones with their losses, the others with the reason why they are missing."""
    levels = []
    for kind in LEVELS:
        level = known.get(kind.name) or Level(kind.name, reason=missing)
        levels.append(replace(level, loss=_loss(kind, level, known)))
    return tuple(levels)


def of_a_cpu(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    """The levels of a step that ran on a CPU. Levels that only GPUs have get that as their reason."""
    return tuple(replace(r, reason=ON_CPU) if r.value is None and r.kind.gpu else r for r in levels)


def _loss(kind: LevelKind, level: Level, known: dict[str, Level]) -> float | None:
    """The loss relative to the nearest level above that has a value; for the top level, relative to the whole step."""
    if kind.above is None or level.value is None:
        return None
    above = kind.above
    while above and (above not in known or known[above].value is None):
        above = KINDS[above].above or ""
    top = known[above].value if above else 1.0
    return None if top is None else max(0.0, top - level.value)
