"""The ladder: how much of the machine a training step uses, asked in ever stricter ways. Names, order, formulas.

Plain text and numbers: whatever shows a rung, computes one or compares two takes its name and its place from here.
Never decide a swap by a rung: time and memory decide. FlashAttention is at its fastest at an occupancy of 13 %.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RungKind:
    """What one rung asks.

    name: its key in JSON. title: for people. formula, source: how the number comes about, and from where.
    get: what to do where the machine at hand cannot tell. above: the rung that its loss is counted from; "" for the
    whole step.
    """

    name: str
    title: str
    formula: str
    source: str
    get: str
    above: str | None = None  # None: no loss, for it is no part of the rung over it

    @property
    def gpu(self) -> bool:
        """Whether it is asked of GPUs only."""
        return self.name not in _ANYWHERE


_ANYWHERE = ("busy", "hfu", "mfu", "ideal")
ON_CPU = "the step ran on a CPU, and it is asked of GPUs"

_TRACE = "take a trace on the GPU: autofuse.profile there, or `autofuse profile --trace trace.json` with a Kineto trace"
_DCGM = "start NVIDIA's DCGM host engine (nv-hostengine) on the machine and profile again"
_NCU = (
    "profile a few kernels with Nsight Compute (ncu --set full --csv) and pass the report beside a trace: "
    "--trace trace.json --ncu report.csv"
)

RUNGS: tuple[RungKind, ...] = (
    RungKind(
        "busy", "busy time", "union of the intervals in which a kernel runs / step time",
        "kernels of a trace (on a CPU, operators); what nvidia-smi calls utilisation", _TRACE, "",
    ),
    RungKind(
        "sm_efficiency", "estimated SM efficiency",
        "sum over kernels of min(blocks / SMs, 1) x duration / step time",
        "launch shapes in a trace, number of SMs from its device properties", _TRACE, "busy",
    ),
    RungKind(
        "occupancy", "estimated achieved occupancy",
        "min(blocks / SMs, resident blocks per SM) x threads per block / threads an SM can hold, "
        "averaged over kernel time",
        "launch shapes, registers and shared memory in a trace", _TRACE, None,
    ),
    RungKind(
        "tensor_share", "time in tensor-core kernels", "time of kernels that use tensor cores / step time",
        "kernel names in a trace", _TRACE, "busy",
    ),
    RungKind("sm_active", "SM activity", "cycles with a warp on the SM / elapsed", "DCGM field 1002", _DCGM),
    RungKind("sm_occupancy", "SM occupancy", "resident warps / the most there can be", "DCGM field 1003", _DCGM),
    RungKind("tensor_active", "tensor pipe activity", "cycles of the tensor pipe / elapsed", "DCGM field 1004", _DCGM),
    RungKind("dram_active", "DRAM activity", "cycles moving data / elapsed", "DCGM field 1005", _DCGM),
    RungKind("fp64_active", "FP64 pipe activity", "cycles of the pipe / elapsed", "DCGM field 1006", _DCGM),
    RungKind("fp32_active", "FP32 pipe activity", "cycles of the pipe / elapsed", "DCGM field 1007", _DCGM),
    RungKind("fp16_active", "FP16 pipe activity", "cycles of the pipe / elapsed", "DCGM field 1008", _DCGM),
    RungKind(
        "issue_slots", "issue slots used", "cycles in which a sub-partition issues / its active cycles",
        "Nsight Compute: smsp__issue_active", _NCU,
    ),
    RungKind(
        "sub_partitions", "SM sub-partitions active", "active cycles of the sub-partitions / elapsed cycles",
        "Nsight Compute: smsp__cycles_active", _NCU,
    ),
    RungKind(
        "hfu", "hardware FLOPs utilisation (HFU)", "FLOPs executed, recomputation included / step time / peak FLOP/s",
        "torch.utils.flop_counter on one step; the peak from the device table or measured",
        "profile a model that runs here; a trace of a GPU tells FLOPs only where shapes were recorded", "busy",
    ),
    RungKind(
        "mfu", "model FLOPs utilisation (MFU)", "FLOPs that the model asks for / step time / peak FLOP/s",
        "the count of the original model, the same before and after fusion",
        "profile a model that runs here; a trace alone holds no FLOPs", "hfu",
    ),
    RungKind(
        "ideal", "share of the ideal step", "sum of max(FLOPs / peak, bytes / bandwidth) of every operator / step time",
        "FLOPs and bytes counted on one step; peaks from the device table or measured",
        "profile a model that runs here; a trace alone holds neither FLOPs nor bytes", "busy",
    ),
)  # fmt: skip

KINDS = {kind.name: kind for kind in RUNGS}


@dataclass(frozen=True)
class Rung:
    """One rung of one profile.

    value: a fraction of 1, None where it cannot be told. basis: what this very number was read from, "3 steps of the
    trace". reason: why there is no value. loss: how much lower it is than the rung that its loss is counted from, as a
    fraction of the step; None without one.
    """

    name: str
    value: float | None = None
    basis: str = ""
    reason: str = ""
    loss: float | None = None
    at_most: bool = False  # the value is the most that it can be: what would tell it exactly is not known

    @property
    def kind(self) -> RungKind:
        """What is asked; of a rung that a later autofuse added, the name alone."""
        return KINDS.get(self.name) or RungKind(self.name, self.name, "", "", "")


def ladder(known: dict[str, Rung], missing: str) -> tuple[Rung, ...]:
    """Every rung in order: those that are known, with their losses, and for the others why they are missing."""
    rungs = []
    for kind in RUNGS:
        rung = known.get(kind.name) or Rung(kind.name, reason=missing)
        rungs.append(replace(rung, loss=_loss(kind, rung, known)))
    return tuple(rungs)


def of_a_cpu(rungs: tuple[Rung, ...]) -> tuple[Rung, ...]:
    """The rungs of a step that ran on a CPU: those that are asked of GPUs say so."""
    return tuple(replace(r, reason=ON_CPU) if r.value is None and r.kind.gpu else r for r in rungs)


def _loss(kind: RungKind, rung: Rung, known: dict[str, Rung]) -> float | None:
    """Counted from the next rung above in its chain that has a value; 1, the whole step, at the top."""
    if kind.above is None or rung.value is None:
        return None
    above = kind.above
    while above and (above not in known or known[above].value is None):
        above = KINDS[above].above or ""
    top = known[above].value if above else 1.0
    return None if top is None else max(0.0, top - rung.value)
