"""Invented profiles for the tests of drawing code. Their numbers are consistent, but not measured."""

from __future__ import annotations

import math
from dataclasses import replace

from autofuse.results.comparison import Category, Comparison, Estimate, Interval
from autofuse.results.ladder import Level, ladder
from autofuse.results.profile import (
    OUTSIDE,
    Attribution,
    Flops,
    Layer,
    Memory,
    Place,
    Power,
    Probe,
    Profile,
    Rank,
    RankSteps,
    Roof,
    Share,
    Span,
    Timing,
    Work,
)

MIB = 2**20
NO_GPU = "this profile was taken on a CPU"
ATTENTION = "autofuse.ops.attention"


def work(ms: float, gflops: float = 0.0, mib: float = 1.0, operators: int = 1) -> Work:
    return Work(ms / 1e3, int(gflops * 1e9), int(mib * MIB), operators, ms / 3e3)


def layer(
    fqn: str, kind: str, forward: Work, backward: Work, *places: Place, step: float = 0.254, regime: str = "memory",
    roofline: float | None = 0.3, below: tuple[float, float] = (0.0, 0.0),
) -> Layer:  # fmt: skip
    whole = [replace(own, seconds=own.seconds + more) for own, more in zip((forward, backward), below, strict=True)]
    return Layer(
        fqn, kind, 1, whole[0], whole[1], forward, backward, (whole[0].seconds + whole[1].seconds) / step, roofline,
        regime, "Its 0.4 FLOP/byte lie below the balance of 6.1." if regime == "memory" else "", None, 12 * MIB, places,
    )  # fmt: skip


def place(rule: str, status: str, seconds: float = 0.02, saving: float = 0.012, step: float = 0.254) -> Place:
    if status == "declined":
        return Place(rule, "declined", "the scores are returned too", file="gpt.py", line=31, seconds=seconds)
    return Place(
        rule, status, "", ATTENTION, "gpt.py", 31, 1, seconds, seconds - saving, 64 * MIB, 10**8,
        step / (step - saving),
    )  # fmt: skip


def block(i: int, fused: bool = False) -> list[Layer]:
    """One block of a GPT: hand-written or fused attention, norms and an MLP."""
    scores = (
        (work(2.1, 0.11, 3, 4), work(5.0, 0.3, 9, 6)) if fused else (work(9.0, 0.11, 96, 14), work(16.0, 0.3, 180, 20))
    )
    status = "fused" if fused else "applies"
    norm = work(0.4, 0, 2, 1) if fused else work(1.6, 0, 11, 7)
    return [
        layer(f"h.{i}", "Block", work(0.1, 0, 1, 2), work(0.1, 0, 1, 2), regime="overhead", below=(0.02, 0.03)),
        layer(f"h.{i}.attn", "Attention", *scores, place("AF101", status)),
        layer(f"h.{i}.attn.c_attn", "Linear", work(2, 0.4, 5), work(4, 0.8, 10, 2), regime="compute", roofline=0.7),
        layer(
            f"h.{i}.attn.c_proj", "Linear", work(0.8, 0.13, 2), work(1.5, 0.27, 4, 2), regime="compute", roofline=0.6
        ),
        layer(f"h.{i}.ln_1", "Norm", norm, norm, place("AF201", status, 0.003, 0.002)),
        layer(f"h.{i}.ln_2", "Norm", norm, norm, place("AF201", "declined")),
        layer(f"h.{i}.mlp", "MLP", work(3, 0.01, 40, 8), work(4, 0.01, 60, 11), place("AF301", status, 0.007, 0.004)),
        layer(f"h.{i}.mlp.0", "Linear", work(2.6, 0.53, 6), work(5, 1.07, 12, 2), regime="compute", roofline=0.75),
        layer(f"h.{i}.mlp.2", "Linear", work(2.4, 0.53, 6), work(5, 1.07, 12, 2), regime="compute", roofline=0.74),
    ]


def gpt(fused: bool = False, blocks: int = 4) -> Profile:
    """A small GPT on a CPU: hand-written, or after fusion."""
    step = 0.145 if fused else 0.254
    layers = [found for i in range(blocks) for found in block(i, fused)]
    steps = tuple(step * (1 + 0.02 * math.sin(3 * i)) for i in range(30))
    scale = 1.6 if fused else 1.0
    known = {
        "busy": Level("busy", 0.941, "operators of 3 steps of the trace"),
        "hfu": Level("hfu", 0.171 * scale, "8.8 GFLOP a step, peak measured"),
        "mfu": Level("mfu", 0.171 * scale, "8.8 GFLOP a step, peak measured"),
        "ideal": Level("ideal", 0.2 * scale, "roofs measured on this machine"),
    }
    activations = 60 if fused else 180
    return Profile(
        name="GPT",
        timing=Timing(steps, Interval(step * 0.99, step * 1.01), 8, 2048, tuple(0.01 for _ in steps)),
        ladder=ladder(known, NO_GPU),
        layers=(
            layer("wte", "Embedding", work(0.3), work(0.5), roofline=None, regime="unknown"),
            *layers,
            layer("lm_head", "Linear", work(3, 0.5, 9), work(6, 1.0, 18), regime="compute", roofline=0.8),
            layer("", "GPT", work(0.2), work(0.1), regime="overhead", below=(0.07, 0.14)),
            layer(OUTSIDE, "", work(9, 0, 30, 40), work(3, 0, 10, 12), roofline=None, regime="unknown"),
        ),
        memory=Memory(
            (activations + 22) * MIB, 3 * MIB, MIB // 4, 3 * MIB, 6 * MIB, activations * MIB, MIB // 2,
            (activations + 22) * MIB - (12 * MIB + MIB // 4 + activations * MIB + MIB // 2), "MemTracker",
        ),
        shares=(
            Share("forward", 0.31 * step, 0.31, "ranges of the trace"),
            Share("backward", 0.57 * step, 0.57, "ranges of the trace"),
            Share("optimizer", 0.05 * step, 0.05, "ranges of the trace"),
            Share("data", 0.01 * step, 0.01, "waits for the loader"),
            Share("idle", 0.06 * step, 0.06, "the rest"),
            Share("host", None, None, reason="on a CPU the host computes"),
            Share("communication", None, None, reason="there is one process only"),
            Share("exposed communication", None, None, reason="there is one process only"),
        ),
        flops=Flops(8_800_000_000, 8_800_000_000, "torch.utils.flop_counter"),
        roof=Roof(2.05e11, 3.4e10, "float32", "AMD EPYC, 2 threads", "measured", "measured", True),
        power=Power(reason="NVML is not there: it needs an NVIDIA GPU."),
        probe=Probe(1.93, Interval(1.88, 1.99), "compute"),
        attribution=Attribution(0.981, 0.972, 1.31, ()),
        categories={
            "attention": Category(12, 0.02, {"aten::_scaled_dot_product_flash_attention_for_cpu": 12}),
            "matmul": Category(60, 0.06, {"aten::mm": 50, "aten::addmm": 10}),
        } if fused else {
            "matmul": Category(84, 0.09, {"aten::mm": 50, "aten::bmm": 24, "aten::addmm": 10}),
            "softmax": Category(8, 0.03, {"aten::_softmax": 4, "aten::_softmax_backward_data": 4}),
            "elementwise": Category(300, 0.08, {"aten::mul": 120, "aten::add": 100, "aten::div": 80}),
        },
        timeline=(
            Span("phases", "forward", 0.0, 0.31 * step, "forward"),
            Span("phases", "backward", 0.33 * step, 0.57 * step, "backward"),
            Span("phases", "optimizer", 0.91 * step, 0.05 * step, "optimizer"),
            *(Span("operators", f"aten::mm {i}", i * step / 40, step / 60, "matmul") for i in range(40)),
        ),
        losses=tuple(4 * math.exp(-i / 20) + 1 for i in range(33)),
        environment={"torch": "2.13.0", "processor": "AMD EPYC", "threads": "2"},
        notes=("The step's time is of 30 steps without instruments.",),
        trace_file="gpt.trace.json.gz",
    )  # fmt: skip


def comparison() -> Comparison:
    """A comparison of the hand-written and the fused GPT."""
    before, after = gpt().timing.seconds, gpt(True).timing.seconds
    return Comparison(
        1.75, Interval(1.6, 1.81), Estimate(1.0, Interval(0.98, 1.03)), "confirmed",
        "The interval lies above 1, and the ratio above the noise.", before, after, 202 * MIB, 82 * MIB, "MemTracker",
    )  # fmt: skip


def trace_of_a_job() -> Profile:
    """A profile from a trace of four GPUs: without FLOPs, memory and layers."""
    known = {
        "busy": Level("busy", 1.0, "kernels of 2 steps"),
        "sm_efficiency": Level("sm_efficiency", 1 / 132, "kernels of 2 steps"),
        "occupancy": Level("occupancy", 0.126, "kernels of 2 steps"),
        "tensor_share": Level("tensor_share", 0.0, "kernels of 2 steps"),
    }
    return Profile(
        name="rank0.json.gz, and 3 more",
        kind="trace",
        timing=Timing((0.1012, 0.0999), Interval(0.0999, 0.1012)),
        ladder=ladder(known, "a trace alone does not tell it"),
        shares=(
            Share("forward", 0.03, 0.3, "ranges of the trace"),
            Share("backward", 0.06, 0.6, "ranges of the trace"),
            Share("optimizer", None, None, reason="no range of the trace names an optimizer"),
            Share("idle", 0.0, 0.0, "no kernel ran"),
            Share("host", 0.04, 0.4, "launches of kernels"),
            Share("communication", 0.02, 0.2, "kernels of NCCL"),
            Share("exposed communication", 0.005, 0.05, "kernels of NCCL with no computation beside them"),
        ),
        categories={"matmul": Category(96, 0.05, {"nvjet_tst_128x256_64x4_2x1_v_bz_TNT": 96})},
        ranks=tuple(Rank(i, 0.1 + 0.001 * i, 0.02, 0.005, 0.99) for i in range(4)),
        timeline=tuple(
            Span(f"rank {i}, stream {7 + 6 * j}", ("ncclDevKernel_AllReduce" if j else "nvjet_tst"), k / 1e3, 6e-4,
                 "communication" if j else "matmul")
            for i in range(4) for j in range(2) for k in range(0, 100, 1 + 3 * j)
        ),
        environment={"device": "NVIDIA H100 80GB HBM3"},
    )  # fmt: skip


def rank_steps() -> tuple[RankSteps, ...]:
    """Four ranks of six steps; rank 2 is 25 ms late in the fourth, and the others wait for it."""
    late = [[0.025 if rank == 2 and step == 3 else 0.0 for step in range(6)] for rank in range(4)]
    return tuple(
        RankSteps(
            rank, tuple(0.1 * step for step in range(6)), tuple(0.125 if step == 3 else 0.1 for step in range(6)),
            tuple(0.025 - late[rank][step] if step == 3 else 0.0 for step in range(6)),
        )
        for rank in range(4)
    )  # fmt: skip


def almost_nothing() -> Profile:
    """The profile of an empty trace."""
    return Profile(
        name="empty.json",
        kind="trace",
        timing=Timing((), Interval(0.0, 0.0)),
        ladder=ladder({}, "there is no kernel in it"),
    )


def large(blocks: int = 48) -> Profile:
    """Many layers with long names and long sentences."""
    profile = gpt(blocks=blocks)
    long = tuple(
        replace(found, fqn=f"model.language_model.decoder.layers_of_the_model.{found.fqn}") for found in profile.layers
    )
    notes = (*profile.notes, "A note that goes on and on, for what it tells cannot be said in fewer words. " * 4)
    return replace(profile, name="AVeryLongClassNameForConditionalGeneration" * 2, layers=long, notes=notes)
