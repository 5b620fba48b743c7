"""torch.compile and torch.export around an optimized model take the fused operators into their graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from tests.fx.test_wrappings_training import bf16, checkpointed
from tests.fx.wrapped import KERNEL, Wrapping, assert_close, assert_wrapped, fused_run, tokens
from tests.fx.wrapped_models import model_of

CALLS = ("scaled_dot_product_attention", "gelu", "silu", "rms_norm")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Graphs:
    """A backend that stores the graphs that it gets."""

    def __init__(self) -> None:
        self.kept: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, examples: object) -> torch.fx.GraphModule:
        self.kept.append(graph)
        return graph

    @property
    def called(self) -> list[str]:
        """The fused functions that the graphs call."""
        names = [getattr(n.target, "__name__", str(n.target)) for g in self.kept for n in g.graph.nodes]
        return [name for name in names if name in CALLS]


def compile_whole(**options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda model: torch.compile(model, fullgraph=True, **options)


def blocks(**options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        for place, block in enumerate(model.blocks):
            model.blocks[place] = torch.compile(block, fullgraph=True, **options)
        return model

    return wrap


def in_place(**options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        for block in model.blocks:
            block.compile(fullgraph=True, **options)
        return model

    return wrap


WRAPPINGS = (
    Wrapping("the whole", compile_whole(backend="eager")),
    Wrapping("the whole with dynamic shapes", compile_whole(backend="eager", dynamic=True)),
    Wrapping("each block", blocks(backend="eager")),
    Wrapping("each block in place", in_place(backend="eager")),
    Wrapping("each block, ahead of time", blocks(backend="aot_eager"), operators=(KERNEL,)),
)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("wrapping", WRAPPINGS, ids=str)
def test_a_compiled_model_trains_as_before_and_runs_the_fused_operators(wrapping: Wrapping, order: str) -> None:
    """There is no break in its graph."""
    assert_wrapped("gpt", wrapping, order)


def test_code_that_was_compiled_before_optimize_is_compiled_again() -> None:
    graphs = Graphs()
    model = model_of("bert")
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    expected = compiled(tokens())
    assert not graphs.called
    autofuse.optimize(compiled, tokens(), verify=False)
    assert_close(compiled(tokens()), expected)
    assert sorted(graphs.called) == ["gelu"] * 2 + ["scaled_dot_product_attention"] * 2
    autofuse.restore(compiled)
    graphs.kept.clear()
    assert_close(compiled(tokens()), expected)
    assert not graphs.called


def test_a_checkpoint_inside_of_a_compiled_model_recomputes_fused() -> None:
    wrap = checkpointed(use_reentrant=False)
    graphs = Graphs()
    model = torch.compile(wrap(autofuse.optimize(model_of("gpt"), tokens(), verify=False)), backend="aot_eager")
    loss = F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
    assert fused_run(loss.backward, (KERNEL,)) == {KERNEL: 2}
    assert not graphs.called
    plain = wrap(model_of("gpt"))
    F.cross_entropy(plain(tokens()).flatten(0, 1), tokens().flatten()).backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert_close(one.grad, other.grad)


def test_under_autocast_the_kind_of_call_must_have_been_seen() -> None:
    """A compiler captures no new kind of call. The report names the guard. A call before compilation avoids this."""
    graphs = Graphs()
    model = autofuse.optimize(model_of("gpt"), tokens(), verify=False)
    with bf16():
        torch.compile(model, backend=graphs, fullgraph=True)(tokens())
        assert not graphs.called
        assert any("autocast" in fallback.guard for fallback in autofuse.report(model).fallbacks)
        model(tokens())
        torch.compile(model, backend=graphs, fullgraph=True)(tokens())
    assert graphs.called.count("scaled_dot_product_attention") == 2


def test_a_model_that_was_never_called_reports_that_its_original_is_compiled() -> None:
    model = autofuse.optimize(model_of("gpt"))
    torch.compile(model, backend="eager", fullgraph=True)(tokens())
    assert any("called before it was compiled" in fallback.guard for fallback in autofuse.report(model).fallbacks)


def test_a_disabled_part_runs_fused_outside_of_the_graph() -> None:
    model = autofuse.optimize(model_of("gpt"), tokens(), verify=False)
    model.blocks[0].forward = torch.compiler.disable(model.blocks[0].forward)
    compiled = torch.compile(model, backend="eager")
    compiled(tokens())
    assert fused_run(lambda: compiled(tokens()))["scaled_dot_product_attention"] == 2


@pytest.mark.slow
def test_inductor_runs_the_fused_kernel() -> None:
    plain, model = model_of("gpt"), autofuse.optimize(model_of("gpt"), tokens(), verify=False)
    compiled = torch.compile(model, fullgraph=True)
    assert_close(compiled(tokens()), plain(tokens()))
    assert fused_run(lambda: compiled(tokens()), (KERNEL,)) == {KERNEL: 2}


@pytest.mark.parametrize(("name", "strict"), [("bert", False), ("gpt", True), ("llama", False)])
def test_an_exported_model_holds_the_fused_operators(name: str, strict: bool) -> None:
    plain, model = model_of(name).eval(), autofuse.optimize(model_of(name).eval(), tokens(), verify=False)
    size = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=32)}
    program = torch.export.export(model, (tokens(),), dynamic_shapes=(size,), strict=strict)
    longer = tokens().repeat(3, 2)
    assert_close(program.module()(longer), plain(longer))
    assert fused_run(lambda: program.module()(longer))["scaled_dot_product_attention"] == 2


def test_a_traced_model_holds_the_fused_operators() -> None:
    plain, model = model_of("gpt").eval(), autofuse.optimize(model_of("gpt").eval(), tokens(), verify=False)
    traced = torch.jit.trace(model, tokens())
    assert_close(traced(tokens()), plain(tokens()))
    assert "scaled_dot_product_attention" in str(traced.inlined_graph)


def test_symbolic_tracing_sees_the_original() -> None:
    class Attend(nn.Module):
        def forward(self, q: Tensor) -> Tensor:
            return torch.softmax(q @ q.mT, -1) @ q

    q = torch.randn(2, 4, 4)
    model = autofuse.optimize(Attend(), q)
    assert fused_run(lambda: model(q))
    assert_close(torch.fx.symbolic_trace(model)(q), model(q))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(12, 12).tril())

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[-2]
        scores = (q @ k.transpose(-2, -1) * 0.5).masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        return scores.softmax(-1) @ v


CAPTURES: dict[str, Callable[[nn.Module, tuple[Tensor, ...]], Any]] = {
    "exported": lambda m, x: torch.export.export(m, x, strict=False).module(),
    "exported strictly": lambda m, x: torch.export.export(m, x, strict=True).module(),
    "traced": lambda m, x: torch.jit.trace(m, x),  # type: ignore[no-untyped-call]
    "compiled": lambda m, x: torch.compile(m, backend="eager", fullgraph=True),
}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("how", ["as it was", "another buffer", "written in place", "another causal buffer"])
def test_a_captured_model_has_the_mask_of_the_time_of_capture(capture: str, how: str) -> None:
    operands = tuple(torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    plain, model = Masked(), autofuse.optimize(Masked(), operands, tune=False)
    for m in (plain, model):
        if how == "another buffer":
            m.mask = torch.ones(12, 12).tril(2)
        elif how == "written in place":
            m.mask[:, 0] = 0
            m.mask.diagonal().fill_(1)
        elif how == "another causal buffer":
            m.mask = torch.ones(16, 16).tril()
    captured = CAPTURES[capture](model, operands)
    assert_close(captured(*operands), plain(*operands))
    causal = how in ("as it was", "another causal buffer")
    assert fused_run(lambda: captured(*operands)).get("scaled_dot_product_attention", 0) == causal


def test_a_compiled_model_sees_a_buffer_that_is_replaced_later() -> None:
    torch._dynamo.reset()
    operands = tuple(torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    plain, model = Masked(), autofuse.optimize(Masked(), operands, tune=False)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert fused_run(lambda: compiled(*operands)).get("scaled_dot_product_attention", 0)
    for mask in (torch.ones(12, 12).tril(2), torch.ones(12, 12).tril()):
        plain.mask = mask
        model.mask = mask.clone()
        assert_close(compiled(*operands), plain(*operands))
