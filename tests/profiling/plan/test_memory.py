"""Estimates compared with the memory of real steps on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification

import autofuse
from autofuse.demo.gpt import GPT, Config
from autofuse.fx.session import planner
from autofuse.fx.session.optimize import optimize_on_paper
from autofuse.profiling.live.memory import PeakHoldings
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.plan import memory
from autofuse.profiling.plan.capacity import parse_capacity
from autofuse.profiling.plan.paper import Unplannable
from autofuse.profiling.plan.plan import plan
from autofuse.results.profile import Memory


def gpt() -> tuple[nn.Module, Tensor]:
    config = Config(vocab_size=256, block_size=128, n_layer=2, n_head=4, n_embd=128)
    return GPT(config), torch.randint(0, 256, (8, 128))


def llama() -> tuple[nn.Module, Tensor]:
    config = LlamaConfig(
        vocab_size=500, hidden_size=128, intermediate_size=344, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), torch.randint(0, 500, (4, 128))


def vit() -> tuple[nn.Module, Tensor]:
    config = ViTConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, attn_implementation="eager"
    )
    return ViTForImageClassification(config), torch.randn(2, 3, 224, 224)


def real(model: nn.Module, x: Tensor, checkpointing: str = "none", fuse: bool = False) -> Memory:
    if fuse:
        autofuse.optimize(model, x, verify=False, tune=False)
    memory.apply_checkpointing(model, checkpointing)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        memory._step(model, x, "")
        optimizer.step()
        optimizer.zero_grad()

    step()
    with PeakHoldings(ModuleNames({"": model}), (optimizer,), inputs=x) as holding:
        step()
    return holding.memory


@pytest.mark.parametrize(
    ("make", "dtype", "checkpointing"),
    [(gpt, "", "none"), (llama, "bfloat16", "block"), (vit, "", "none")],
)
def test_estimates_before_and_after_fusion_have_at_most_the_stated_error(
    make: object, dtype: str, checkpointing: str
) -> None:
    assert callable(make)
    model, x = make()
    found = plan(model, x, dtype=dtype, checkpointing=checkpointing)
    if dtype:
        model.to(getattr(torch, dtype))
    before = real(model, x, checkpointing)
    assert found.before.memory.peak_bytes == pytest.approx(before.peak_bytes, rel=memory.ERROR)
    assert found.before.memory.optimizer == before.optimizer
    model = make()[0].to(getattr(torch, dtype or "float32"))
    after = real(model, x, checkpointing, fuse=True)
    assert found.after.memory.peak_bytes == pytest.approx(after.peak_bytes, rel=memory.ERROR_FUSED)
    assert found.after.fused == len(autofuse.report(model).with_status("fused"))


def test_a_model_of_any_size_is_planned_without_allocating_it() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2**16, 2**16, bias=False), nn.Linear(2**16, 2**16, bias=False))
        x = torch.empty(1, 2**16)
    found = plan(model, x, optimizer="momentum", fuse=False)
    assert found.before.memory.parameters == found.before.memory.optimizer == 2 * 2**32 * 4


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    model, x = gpt()
    room = parse_capacity("64MiB")
    largest = plan(model, x, capacity=room, fuse=False).before.largest_batch
    assert largest is not None
    for batch, fit in ((largest, "fits"), (largest + 1, "too close to tell")):
        side = plan(model, x, batch=batch, capacity=room, fuse=False).before
        assert side.fit == fit, batch


def test_if_not_even_one_sample_fits_the_largest_batch_is_0() -> None:
    model, x = gpt()
    side = plan(model, x, capacity=parse_capacity("1MiB"), fuse=False).before
    assert (side.fit, side.largest_batch) == ("does not fit", 0)


def test_a_step_and_a_model_stay_as_they_are() -> None:
    model, x = gpt()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    plan(model, x, checkpointing="block", dtype="bfloat16")
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert not autofuse.report(model).sites
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())


def test_a_forward_that_needs_numbers_is_refused_with_the_reason() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inside(x) if x.sum().item() > 0 else x

    with pytest.raises(Unplannable, match="without numbers"):
        plan(Asking(), torch.ones(2, 4))


def test_names_of_modules_choose_what_is_checkpointed() -> None:
    model, x = gpt()
    none, some, block = (
        plan(model, x, checkpointing=what, fuse=False).before.memory.activations for what in ("none", "h.0", "block")
    )
    assert none > some > block
    with pytest.raises(Unplannable, match="named_modules"):
        plan(model, x, checkpointing="nothing.*", fuse=False)


def _wide() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(12))), torch.randn(4, 256)


def test_weights_that_autocast_copied_are_gone_after_the_backward_as_in_a_real_step() -> None:
    """Parameters, gradients and two moments in float32 take 16 bytes per parameter at the optimizer's step.

    A model with few activations has its peak there. A bfloat16 copy of the weights that outlived the backward would
    make it 18 bytes.
    """
    model, x = _wide()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with PeakHoldings(ModuleNames({"": model}), (optimizer,), inputs=x) as holding:
        step()
    measured = holding.memory.peak_bytes
    planned = plan(*_wide(), autocast="bfloat16", fuse=False).before.memory.peak_bytes
    assert measured and planned and abs(planned / measured - 1) < 0.03, (planned, measured)
    parameters = sum(p.numel() for p in model.parameters())
    assert 15.9 < planned / parameters < 17, planned / parameters


def test_a_custom_step_under_autocast_keeps_no_copy_either() -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        model(x).float().square().mean().backward()

    model, x = _wide()
    parameters = sum(p.numel() for p in model.parameters())
    planned = plan(model, x, step, autocast="bfloat16", fuse=False).before.memory.peak_bytes
    assert planned and planned / parameters < 17.5, planned / parameters


def test_fused_places_run_under_autocast_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Guards hold for the autocast state of the capture. A place that falls back would save nothing."""
    model, x = gpt()
    with caplog.at_level("INFO", "autofuse"):
        found = plan(model, x, autocast="bfloat16")
    assert found.after.fused > 0
    assert found.saved_bytes is not None and found.saved_bytes > 0
    assert not caplog.records


def test_states_in_half_precision_with_float32_masters_take_16_bytes_a_parameter() -> None:
    model, x = _wide()
    parameters = sum(p.numel() for p in model.parameters())
    side = plan(model, x, dtype="bfloat16", master=True, fuse=False).before
    assert side.states_bytes is not None
    # AdamW's step counts, one number for each parameter, are all that is above it.
    assert side.states_bytes / parameters == pytest.approx(16, rel=1e-4)
    sharded = plan(model, x, dtype="bfloat16", master=True, strategy="fsdp", devices=4, fuse=False).before
    assert sharded.states_bytes is not None and sharded.states_bytes / parameters == pytest.approx(4, rel=1e-4)


def test_an_offloaded_optimizer_leaves_parameters_and_gradients_on_the_device() -> None:
    model, x = _wide()
    parameters = sum(p.numel() for p in model.parameters())
    side = plan(model, x, dtype="bfloat16", master=True, offload="optimizer", fuse=False).before
    assert side.memory.optimizer == 0
    assert side.host_bytes / parameters == pytest.approx(12, rel=1e-4)
    assert side.states_bytes is not None and side.states_bytes / parameters == pytest.approx(4, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"master": True}, "half precision"),
        ({"offload": "parameters"}, "fsdp or hsdp"),
        ({"offload": "everything"}, "no offload 'everything'"),
        ({"pipeline": 0}, "pipeline must be 1 or more"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(Unplannable, match=sentence):
        plan(*_wide(), fuse=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [False, True])
def test_a_model_on_paper_is_fused_for_the_mode_of_its_step_and_reads_no_other(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = []
    trace = planner.trace_forward
    monkeypatch.setattr(planner, "trace_forward", lambda m, a, k, world, *rest: (
        traced.append(world.of(m).training), trace(m, a, k, world, *rest))[1])  # fmt: skip
    model, x = llama()
    optimize_on_paper(model.train(training), x)
    assert set(traced) == {training}
    assert autofuse.report(model).with_status("fused")
    model(x)
    assert not autofuse.report(model).fallbacks
