"""Real recordings of small models on a CPU: the owners of events, and that recording changes nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import autofuse
from autofuse.demo.gpt import GPT, Config
from autofuse.measure.step import training_step
from autofuse.profiling.live.counting import Counting
from autofuse.profiling.live.module_calls import ModuleNames, around_calls
from autofuse.profiling.live.recording import Recording
from autofuse.profiling.trace import trace as traces
from autofuse.profiling.trace.event_owners import MODULE
from autofuse.profiling.trace.layers import LayerTimes, layers_of
from autofuse.results.profile import OUTSIDE

INPUT = torch.randn(8, 16, requires_grad=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return x


def plain(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)  # type: ignore[no-any-return]


def reentrant(module: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(module, x, use_reentrant=True)  # type: ignore[no-any-return]


def not_reentrant(module: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(module, x, use_reentrant=False)  # type: ignore[no-any-return]


def recorded(model: nn.Module, step: Callable[[], object], steps: int = 1) -> Recording:
    step()
    with Recording(ModuleNames({"": model}), "cpu") as recording:
        for _ in range(steps):
            with recording.step():
                step()
    return recording


def times_of(model: nn.Module, inputs: Tensor = INPUT) -> LayerTimes:
    return layers_of(recorded(model, lambda: training_step(model, inputs)).trace)


def test_products_of_both_passes_belong_to_the_modules_that_hold_their_weights() -> None:
    times = times_of(Net(plain))
    for name in ("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"):
        assert times.own[name, "forward"].operators >= 1  # addmm
        assert times.own[name, "backward"].operators >= 3  # two mm, and the bias's sum
    assert times.own["blocks.0", "backward"].operators >= 1  # gelu_backward
    assert times.calls["blocks.1.up"] == 1
    assert (times.attribution.forward, times.attribution.backward) == (1.0, 1.0)


@pytest.mark.parametrize("call", [plain, reentrant])
def test_operators_of_every_module_and_phase_equal_those_of_the_counting_pass(
    call: Callable[..., Tensor],
) -> None:
    model = Net(call)
    times = times_of(model)
    with Counting(ModuleNames({"": model})) as counting:
        training_step(model, INPUT)
    counted = {key: work.operators for key, work in counting.works().items()}
    assert {key: work.operators for key, work in times.own.items() if work.operators} == counted


def test_a_backward_on_a_thread_that_recomputes_is_joined_to_both_threads() -> None:
    """On a GPU the backward runs on its own thread, so nodes of both threads have the same numbers."""
    model = Net(reentrant)
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    names, marked = ModuleNames({"": model}), torch._C._profiler._RecordFunctionFast
    with (
        profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as profiler,
        around_calls(names, lambda name, _: marked(MODULE + name)),
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(model(INPUT).square().mean().backward).result()
    with TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        times = layers_of(traces.read(Path(folder) / "trace.json"))
    alone = times_of(model)
    for name in ("blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1", ""):
        assert times.own[name, "backward"].operators == alone.own[name, "backward"].operators
    assert times.attribution.backward == 1.0


@pytest.mark.parametrize("call", [reentrant, not_reentrant])
def test_checkpointed_layers_keep_their_backward_and_are_called_once(call: Callable[..., Tensor]) -> None:
    plainly, times = times_of(Net(plain)), times_of(Net(call))
    for name in ("blocks.0.up", "blocks.1.up", "blocks.0.down"):
        assert times.own[name, "forward"].operators == plainly.own[name, "forward"].operators
        assert times.own[name, "backward"].operators > plainly.own[name, "backward"].operators
        assert times.calls[name] == 1
    assert times.attribution.backward == 1.0


def test_a_shared_module_is_one_layer_of_several_calls() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(torch.tanh(self.cell(x)))  # type: ignore[no-any-return]

    times = times_of(Shared())
    assert times.calls == {"": 1, "cell": 2}
    assert times.own["cell", "backward"].operators >= 6


def test_a_function_with_its_own_backward_belongs_to_its_module() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient.cos()

    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Doubled.apply(x)  # type: ignore[no-any-return, no-untyped-call]

    times = times_of(nn.Sequential(nn.Linear(16, 16), Module()))
    assert times.own["1", "backward"].operators == 1


def test_gradients_of_gradients_are_attributed() -> None:
    model = Net(plain)

    def step() -> None:
        x = INPUT.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
        model.zero_grad()

    times = layers_of(recorded(model, step).trace)
    assert times.own["blocks.0.up", "backward"].operators >= 4
    assert times.attribution.backward == 1.0


def test_without_gradients_there_is_a_forward_only() -> None:
    model = Net(plain)
    with torch.no_grad():
        times = layers_of(recorded(model, lambda: model(INPUT)).trace)
    assert {phase for _, phase in times.own} == {"forward"}
    assert times.attribution.backward is None


def test_the_optimizer_and_the_loss_are_outside() -> None:
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        F.mse_loss(model(INPUT.detach()), torch.zeros(8, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    times = layers_of(recorded(model, step).trace)
    assert times.own[OUTSIDE, "forward"].operators >= 2
    assert times.own[OUTSIDE, "backward"].operators >= 1


def test_an_optimized_model_runs_its_fused_operations_while_it_is_recorded() -> None:
    model = GPT(Config(n_layer=1, block_size=16))
    tokens = torch.randint(0, 64, (2, 16))
    optimized = autofuse.optimize(model, example_inputs=(tokens,))
    assert autofuse.report(optimized).with_status("fused")
    recording = recorded(optimized, lambda: training_step(optimized, (tokens,)))
    assert not autofuse.report(optimized).fallbacks
    names = {event.name for event in recording.trace.events}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names
    times = layers_of(recording.trace)
    assert times.own["h.0.attn", "backward"].operators >= 1
    assert times.attribution.backward is not None and times.attribution.backward > 0.95


def test_a_compiled_model_is_one_layer_and_a_note_says_why() -> None:
    model = torch.compile(Net(plain), backend="aot_eager")
    times = times_of(model)
    assert [key for key in times.own if key[0] != OUTSIDE] == [("", "forward"), ("", "backward")]
    assert any("torch.compile" in note for note in times.attribution.notes)


def test_several_models_keep_their_names_apart() -> None:
    one, other = nn.Linear(16, 16), nn.Linear(16, 1)
    names = ModuleNames({"generator": one, "critic": other})
    with Recording(names, "cpu") as recording, recording.step():
        other(one(INPUT)).sum().backward()
    times = layers_of(recording.trace)
    assert times.own["generator", "backward"].operators >= 2
    assert times.own["critic", "backward"].operators >= 2


def test_a_script_marks_steps_at_their_boundaries_and_earlier_events_do_not_count() -> None:
    model = nn.Linear(16, 16)
    with Recording(ModuleNames({"": model}), "cpu") as recording:
        model(INPUT)
        for _ in range(3):
            recording.next_step()
            model(INPUT)
        recording.end_step()
        model(INPUT)
    times = layers_of(recording.trace)
    assert (times.steps, times.calls) == (3, {"": 1})


def test_a_recording_leaves_results_and_modules_as_they_were() -> None:
    model = Net(plain)
    before, call = model(INPUT), nn.Module.__call__
    with Recording(ModuleNames({"": model}), "cpu") as recording, recording.step():
        during = model(INPUT)
    assert torch.equal(before, during)
    assert nn.Module.__call__ is call
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_recording_an_event_has_a_cost_that_is_not_negative() -> None:
    cost = recorded(nn.Linear(16, 16), lambda: None).cost
    assert cost.event >= 0.0 and cost.call >= 0.0


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_saved_file_is_the_trace(name: str, tmp_path: Path) -> None:
    recording = recorded(nn.Linear(16, 16), lambda: None)
    path = tmp_path / name
    path.write_text("older content")
    recording.save(path)
    content = path.read_bytes()
    assert json.loads(gzip.decompress(content) if name.endswith(".gz") else content)["traceEvents"]
    assert traces.read(path).events == recording.trace.events
    assert list(tmp_path.iterdir()) == [path]


def test_there_is_no_trace_before_the_end() -> None:
    recording = Recording(ModuleNames({}), "cpu")
    with pytest.raises(RuntimeError, match="no trace yet"):
        recording.save("trace.json")


def test_a_step_that_fails_leaves_no_profiler_behind() -> None:
    call = nn.Module.__call__
    with pytest.raises(ZeroDivisionError), Recording(ModuleNames({}), "cpu") as recording, recording.step():
        raise ZeroDivisionError
    assert nn.Module.__call__ is call
    assert recording.trace.events
    with Recording(ModuleNames({}), "cpu"):
        pass


def test_a_profiler_around_or_in_the_steps_is_refused_with_a_sentence() -> None:
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(RuntimeError, match="only one can run at a time"):
        Recording(ModuleNames({}), "cpu").__enter__()
    with (
        pytest.raises(RuntimeError, match="only one can run at a time"),
        Recording(ModuleNames({}), "cpu") as recording,
        recording.step(),
        profile(activities=[ProfilerActivity.CPU]),
    ):
        pass
    assert not torch._C._autograd._profiler_enabled()
