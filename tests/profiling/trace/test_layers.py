"""Traces written by hand, in microseconds. The expected numbers were computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from autofuse.display.folding import fold_layers
from autofuse.profiling.trace import trace as traces
from autofuse.profiling.trace.layer_totals import layers
from autofuse.profiling.trace.layers import LayerTimes, layers_of
from autofuse.profiling.trace.trace import Trace
from autofuse.results.profile import COMMUNICATION, OPTIMIZER, OUTSIDE

NODE = "autograd::engine::evaluate_function: "


def span(name: str, start: float, end: float, category: str = "cpu_op", thread: int = 1, **args: Any) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in args.items()}
    numbers = {"Sequence number": named.pop("number", None), "Fwd thread id": named.pop("made by", 0)}
    given = {**named, **({} if numbers["Sequence number"] is None else numbers)}
    when = {"pid": 1, "tid": thread, "ts": start, "dur": end - start}
    return {"ph": "X", "name": name, "cat": category, **when, "args": given}


def trace(*spans: dict[str, Any], sms: int = 0) -> Trace:
    return traces.parse_trace(
        {"traceEvents": list(spans), "deviceProperties": [{"id": 0, "numSms": sms}] if sms else []}
    )


def step(start: float, end: float, number: int = 0) -> dict[str, Any]:
    return span(f"ProfilerStep#{number}", start, end, "user_annotation")


def microseconds(times: LayerTimes) -> dict[tuple[str, str], float]:
    return {key: round(work.seconds * 1e6, 6) for key, work in times.own.items()}


# A model of a product `a` and a softmax in its own forward, a loss, and the backward of all three.
TRAINING = (
    step(0, 200),
    span("mod::", 10, 60),
    span("mod::a", 15, 40),
    span("aten::mm", 20, 38, number=5),
    span("aten::_softmax", 45, 55, number=6),
    span("aten::mean", 65, 70, number=7),
    span(NODE + "MeanBackward0", 80, 90, number=7, made_by=1),
    span("MeanBackward0", 82, 88, number=7, made_by=1),
    span(NODE + "SoftmaxBackward0", 90, 110, number=6, made_by=1),
    span(NODE + "MmBackward0", 112, 150, number=5, made_by=1),
    span("aten::mm", 115, 145),
    span(NODE + "torch::autograd::AccumulateGrad", 151, 155),
    span("aten::add_", 152, 154),
    span("Optimizer.step#SGD.step", 160, 190, "user_annotation"),
    span("aten::_foreach_add_", 165, 185),
)


def test_on_a_cpu_a_layers_own_time_is_the_threads_time_in_it_without_called_modules() -> None:
    times = layers_of(trace(*TRAINING))
    assert microseconds(times) == {
        ("", "forward"): 50 - 25,
        ("a", "forward"): 25,
        (OUTSIDE, "forward"): 5,
        (OPTIMIZER, "forward"): 30,
        (OUTSIDE, "backward"): 10,
        ("", "backward"): 20,
        ("a", "backward"): 38 + 2 + 4 + 1,  # with what the engine takes before each of its nodes
    }
    assert times.step_seconds == pytest.approx(200e-6)
    assert times.calls == {"": 1, "a": 1}
    assert list(times.kinds) == ["", "a"]


def test_operators_are_those_that_compute() -> None:
    own = layers_of(trace(*TRAINING)).own
    assert {key: work.operators for key, work in own.items()} == {
        ("", "forward"): 1, ("a", "forward"): 1, (OUTSIDE, "forward"): 1, (OUTSIDE, "backward"): 0,
        (OPTIMIZER, "forward"): 1,
        ("", "backward"): 0, ("a", "backward"): 2,
    }  # fmt: skip


def test_the_losses_backward_is_outside_and_neither_attributed_nor_missed() -> None:
    attribution = layers_of(trace(*TRAINING)).attribution
    assert (attribution.forward, attribution.backward) == (1.0, 1.0)
    assert any("outside every module, such as the loss" in note for note in attribution.notes)


def test_figures_are_the_mean_of_the_steps_without_the_time_between_them() -> None:
    times = layers_of(
        trace(
            step(0, 10, 0), span("mod::a", 0, 4), span("aten::mm", 1, 3),
            span("mod::a", 12, 15), span("aten::mm", 13, 14),
            step(20, 40, 1), span("mod::a", 20, 30), span("mod::a", 30, 36),
        )
    )  # fmt: skip
    assert microseconds(times) == {("a", "forward"): (4 + 10 + 6) / 2}
    assert times.step_seconds == pytest.approx(15e-6)
    assert times.calls == {"a": 2}  # 3 in 2 steps, rounded
    assert times.steps == 2


def test_a_node_without_a_recorded_forward_is_outside_and_counts_as_not_attributed() -> None:
    times = layers_of(
        trace(
            span("mod::a", 10, 20), span("aten::mm", 12, 18, number=9),
            span(NODE + "MmBackward0", 30, 60, number=9, made_by=1),
            span(NODE + "MulBackward0", 60, 70, number=3, made_by=1),
        )
    )  # fmt: skip
    assert microseconds(times)[OUTSIDE, "backward"] == 10
    assert times.attribution.backward == pytest.approx(30 / 40)
    assert any("has no known owner" in note for note in times.attribution.notes)


def test_a_recomputed_forward_belongs_to_the_backward_and_its_nodes_to_its_module() -> None:
    """Reentrant checkpointing: node 3 runs the module again, and then a separate backward."""
    times = layers_of(
        trace(
            span("mod::", 0, 20), span("CheckpointFunction", 2, 18, number=3),
            span("mod::a", 4, 16), span("aten::mm", 5, 15),
            span(NODE + "CheckpointFunctionBackward", 30, 100, number=3, made_by=1),
            span("mod::a", 35, 50), span("aten::mm", 36, 48, number=8),
            span(NODE + "MmBackward0", 55, 85, number=8, made_by=1),
            span(NODE + "torch::autograd::AccumulateGrad", 85, 90),
        )
    )  # fmt: skip
    assert microseconds(times) == {
        ("", "forward"): 20 - 12, ("a", "forward"): 12,
        ("", "backward"): 70 - 15 - 35, ("a", "backward"): 15 + 30 + 5,
    }  # fmt: skip
    assert times.calls == {"": 1, "a": 1}


def test_modules_called_many_times_add_up() -> None:
    times = layers_of(
        trace(
            span("mod::cell", 0, 10), span("aten::mm", 1, 9, number=1), span("mod::cell", 10, 30),
            span("aten::mm", 11, 29, number=2), span("aten::sum", 31, 32, number=3),
            span(NODE + "MmBackward0", 40, 50, number=2, made_by=1),
            span(NODE + "MmBackward0", 50, 57, number=1, made_by=1),
        )
    )  # fmt: skip
    assert microseconds(times) == {("cell", "forward"): 30, (OUTSIDE, "forward"): 1, ("cell", "backward"): 17}
    assert times.calls == {"cell": 2}


def test_a_module_within_its_own_range_is_one_call() -> None:
    times = layers_of(trace(span("mod::", 0, 10), span("mod::", 2, 8), span("mod::a", 3, 5)))
    assert times.calls == {"": 1, "a": 1}
    assert microseconds(times) == {("", "forward"): 8, ("a", "forward"): 2}


# The host launches on thread 1; the engine runs nodes on thread 2, where a module is also recomputed.
GPU = (
    step(0, 100),
    span("mod::", 0, 30),
    span("mod::a", 2, 20),
    span("aten::mm", 4, 10, number=1),
    span("cudaLaunchKernel", 5, 6, "cuda_runtime", correlation=11),
    span("aten::tanh", 20, 28, number=2),
    span("cuLaunchKernel", 21, 22, "cuda_driver", correlation=12),
    span(NODE + "TanhBackward0", 30, 34, thread=2, number=2, made_by=1),
    span("mod::a", 31, 33, thread=2),
    span("aten::mm", 31, 32, thread=2, number=1),
    span("cudaLaunchKernel", 31.2, 31.4, "cuda_runtime", thread=2, correlation=13),
    span(NODE + "MmBackward0", 35, 40, thread=2, number=1, made_by=1),
    span("cudaLaunchKernel", 36, 37, "cuda_runtime", thread=2, correlation=14),
    span("gemm", 10, 30, "kernel", 7, device=0, grid=[66, 1, 1], correlation=11),
    span("tanh_kernel", 30, 40, "kernel", 7, device=0, grid=[264, 1, 1], correlation=12),
    span("gemm", 45, 65, "kernel", 7, device=0, grid=[66, 1, 1], correlation=13),
    span("gemm", 65, 95, "kernel", 7, device=0, grid=[132, 1, 1], correlation=14),
)


def test_on_a_gpu_a_layers_time_is_that_of_the_kernels_it_launched() -> None:
    times = layers_of(trace(*GPU, sms=132))
    assert microseconds(times) == {("a", "forward"): 20, ("", "forward"): 10, ("a", "backward"): 20 + 30}
    assert {key: work.operators for key, work in times.own.items()}["a", "backward"] == 2
    assert (times.attribution.forward, times.attribution.backward) == (1.0, 1.0)
    assert times.on_device


def test_sm_efficiency_has_its_terms_by_module() -> None:
    times = layers_of(trace(*GPU, sms=132))
    assert {name: round(value * 1e6, 6) for name, value in times.kernel_seconds.items()} == {"a": 70, "": 10}
    assert {name: round(value * 1e6, 6) for name, value in times.sm_seconds.items()} == {
        "a": 20 / 2 + 20 / 2 + 30,
        "": 10,
    }


def test_a_kernel_without_its_launch_is_outside_and_counts_against() -> None:
    lost = span("gemm", 95, 99, "kernel", 7, device=0, correlation=99)
    times = layers_of(trace(*GPU, lost, sms=132))
    assert microseconds(times)[OUTSIDE, "forward"] == 4
    assert times.attribution.forward == pytest.approx(30 / 34)


def test_without_launches_a_kernel_is_linked_to_its_operator() -> None:
    times = layers_of(
        trace(
            span("mod::a", 0, 10), span("aten::mm", 1, 5, External_id=4),
            span("gemm", 6, 16, "kernel", 7, External_id=4),
        )
    )  # fmt: skip
    assert microseconds(times) == {("a", "forward"): 10}


def test_communication_belongs_to_no_module() -> None:
    reduced = (
        span("cudaLaunchKernel", 38, 39, "cuda_runtime", thread=2, correlation=15),
        span("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 60, "kernel", 8, device=0, correlation=15),
    )
    times = layers_of(trace(*GPU, *reduced, sms=132))
    assert microseconds(times)[COMMUNICATION, "backward"] == 20
    assert (OUTSIDE, "backward") not in times.own  # what NCCL runs is none of the operators outside of modules
    assert times.attribution.backward == 1.0


def test_other_threads_take_no_time_from_the_model() -> None:
    worker = span("aten::cat", 0, 50, thread=9)
    assert microseconds(layers_of(trace(*TRAINING, worker))) == microseconds(layers_of(trace(*TRAINING)))


def test_compiled_code_counts_for_the_module_that_was_compiled_and_a_note_says_so() -> None:
    times = layers_of(
        trace(
            span("mod::", 0, 50), span("mod::a", 0, 40), span("Torch-Compiled Region: 0/0", 5, 35),
            span("CompiledFunction", 10, 30, number=4), span("aten::mm", 12, 20),
            span(NODE + "CompiledFunctionBackward", 60, 110, number=4, made_by=1),
        )
    )  # fmt: skip
    assert microseconds(times) == {("", "forward"): 10, ("a", "forward"): 40, ("a", "backward"): 50}
    assert any(
        note.startswith("80% of the time lies in code that torch.compile generated (a)")
        for note in times.attribution.notes
    )


def test_modules_of_torchs_own_stacks_are_named_by_the_path_of_their_calls() -> None:
    times = layers_of(
        trace(
            span("nn.Module: Block_0", 0, 30, "python_function"),
            span("model.py(7): forward", 1, 29, "python_function"),
            span("nn.Module: Linear_0", 5, 15, "python_function"), span("aten::mm", 6, 14, number=1),
            span(NODE + "MmBackward0", 40, 60, number=1, made_by=1),
        )
    )  # fmt: skip
    assert microseconds(times) == {
        ("Block", "forward"): 20, ("Block.Linear", "forward"): 10, ("Block.Linear", "backward"): 20,
    }  # fmt: skip
    assert dict(times.kinds) == {"Block": "Block", "Block.Linear": "Linear"}
    assert any("by their class (with_stack=True)" in note for note in times.attribution.notes)


def test_layers_that_only_stacks_name_fold_by_the_path_of_their_classes() -> None:
    entries = [span("nn.Module: Qwen2Model_0", 0, 1000, "python_function")]
    for layer in range(4):
        at = 100 * layer
        entries.append(span(f"nn.Module: Qwen2DecoderLayer_{layer}", at + 1, at + 90, "python_function"))
        for linear in range(2):
            since = at + 10 + 20 * linear
            entries.append(span(f"nn.Module: Linear_{7 * layer + linear}", since, since + 15, "python_function"))
            entries.append(span("aten::mm", since + 1, since + 11))
    times = layers_of(trace(*entries))
    name = "Qwen2Model.Qwen2DecoderLayer.3.Linear.1"
    assert microseconds(times)[name, "forward"] == 15
    folds = fold_layers(layers(times.own, {}, times.kinds, times.calls, times.step_seconds))
    assert {(fold.name, fold.count) for fold in folds} >= {
        ("Qwen2Model.Qwen2DecoderLayer.*", 4), ("Qwen2Model.Qwen2DecoderLayer.*.Linear.*", 8),
    }  # fmt: skip


def test_a_trace_without_modules_is_all_outside_and_says_why() -> None:
    times = layers_of(trace(span("aten::mm", 0, 10)))
    assert microseconds(times) == {(OUTSIDE, "forward"): 10}
    assert times.attribution.forward is None
    assert any("no calls of modules" in note for note in times.attribution.notes)


def test_an_empty_trace_has_no_layers() -> None:
    assert layers_of(trace()).own == {}
