"""Parameters that are reparametrized, adapted, quantised, frozen, moved, loaded and replaced after optimize."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import weight_norm

import autofuse
from tests.fx.wrapped import assert_close, fused_run, tokens
from tests.fx.wrapped_models import GptBlock, model_of

Change = Callable[[nn.Module], None]
PROJECTIONS = ["c_fc", "c_proj", "c_attn", "gate", "up", "wq"]


def linears(model: nn.Module) -> list[nn.Linear]:
    """All linear layers except the head, whose weight is the embedding's."""
    return [m for m in model.blocks.modules() if isinstance(m, nn.Linear)]


def optimized(model: nn.Module) -> nn.Module:
    return autofuse.optimize(model, tokens(), verify=False)


def run(model: nn.Module) -> dict[str, int]:
    """The fused operators of a call of a known kind."""
    model(tokens())
    return fused_run(lambda: model(tokens()))


def assert_same_step(plain: nn.Module, model: nn.Module) -> None:
    for m in (plain, model):
        m.zero_grad()
        F.cross_entropy(m(tokens()).flatten(0, 1), tokens().flatten()).backward()
    assert_close(model(tokens()), plain(tokens()))
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            assert_close(other.grad, one.grad)


def parametrized(model: nn.Module) -> None:
    for linear in linears(model):
        weight_norm(linear)


def plain_again(model: nn.Module) -> None:
    for linear in linears(model):
        parametrize.remove_parametrizations(linear, "weight")


def pruned(model: nn.Module) -> None:
    for linear in linears(model):
        prune.l1_unstructured(linear, "weight", 0.3)


def unpruned(model: nn.Module) -> None:
    for linear in linears(model):
        prune.remove(linear, "weight")


@pytest.mark.parametrize(
    ("name", "change", "back", "before"),
    [
        pytest.param("gpt", parametrized, plain_again, True, id="weight norm after"),
        pytest.param("llama", parametrized, plain_again, False, id="weight norm before"),
        pytest.param("llama", pruned, unpruned, True, id="pruned after"),
        pytest.param("gpt", pruned, unpruned, False, id="pruned before"),
    ],
)
def test_attention_stays_fused_around_layers_that_are_more_than_linear(
    name: str, change: Change, back: Change, before: bool
) -> None:
    plain, model = model_of(name), model_of(name)
    if before:
        optimized(model)
    alone = run(optimized(model_of(name)))
    for m in (plain, model):
        change(m)
    optimized(model) if not before else None
    assert_same_step(plain, model)
    assert run(model)["scaled_dot_product_attention"] == 2
    for m in (plain, model):
        back(m)
    assert_same_step(plain, model)
    assert run(model) == alone


@pytest.mark.parametrize(("name", "before"), [("gpt", True), ("llama", False)])
def test_adapters_of_peft_train_and_merge(name: str, before: bool) -> None:
    peft = pytest.importorskip("peft")

    def adapted(model: nn.Module) -> nn.Module:
        torch.manual_seed(3)
        targets = [n for n in PROJECTIONS if any(k.endswith(n) for k, _ in model.named_modules())]
        config = peft.LoraConfig(target_modules=targets, r=4, init_lora_weights=False)
        return peft.get_peft_model(model, config)  # type: ignore[no-any-return]

    plain = adapted(model_of(name))
    model = adapted(optimized(model_of(name))) if before else optimized(adapted(model_of(name)))
    assert_same_step(plain, model)
    assert run(model)["scaled_dot_product_attention"] == 2
    for m in (plain, model):
        m.merge_adapter()
    assert_close(model(tokens()), plain(tokens()))
    merged = model.merge_and_unload()
    assert_close(merged(tokens()), plain.merge_and_unload()(tokens()))
    assert run(merged) == run(optimized(model_of(name)))


@pytest.mark.parametrize("before", [True, False], ids=["optimized first", "optimized later"])
def test_weights_quantised_by_torchao_are_not_read_past_their_layers(before: bool) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    plain, model = model_of("gpt"), model_of("gpt")
    if before:
        optimized(model)
    for m in (plain, model):
        quantization.quantize_(m, quantization.Int8WeightOnlyConfig())
    if not before:
        autofuse.optimize(model, tokens())
    assert_close(model(tokens()), plain(tokens()))
    ran = run(model)
    assert ran["scaled_dot_product_attention"] == 2 and ran["gelu"] == 2
    mlps = [s for s in autofuse.report(model).sites if s.rule == "AF304"]
    assert before or not [s for s in mlps if s.status == "fused"]


class Packed(nn.Parameter):
    """A weight whose stored numbers are encoded, as in 4-bit libraries."""

    def __new__(cls, data: Tensor) -> Packed:
        return torch.Tensor._make_subclass(cls, data, False)


class PackedLinear(nn.Linear):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None)
        self.weight, self.bias = Packed(2 * linear.weight.data), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.as_subclass(Tensor) / 2, self.bias)


def test_layers_with_packed_weights_are_left_alone() -> None:
    plain = model_of("llama")
    model = copy.deepcopy(plain)
    for block in model.blocks:
        for parent, name in ((block, "gate"), (block, "up"), (block.attention, "wq")):
            setattr(parent, name, PackedLinear(getattr(parent, name)))
    autofuse.optimize(model, tokens())
    assert_close(model(tokens()), plain(tokens()))
    assert run(model) == run(optimized(model_of("llama")))


def test_frozen_and_thawed_weights_get_their_gradients() -> None:
    plain, model = model_of("gpt"), optimized(model_of("gpt"))
    for frozen in (["blocks.0"], ["embedding", "blocks.1.attn"], []):
        for m in (plain, model):
            for name, p in m.named_parameters():
                p.requires_grad_(not name.startswith(tuple(frozen)) if frozen else True)
        assert_same_step(plain, model)
        assert run(model)["scaled_dot_product_attention"] == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_moved_to_another_dtype_runs_fused_and_back(dtype: torch.dtype) -> None:
    plain, model = model_of("gpt").to(dtype), optimized(model_of("gpt")).to(dtype)
    exact = model_of("gpt").double()(tokens())
    error = (plain(tokens()) - exact).norm()
    assert (model(tokens()) - exact).norm() <= 2 * error + 1e-12
    assert run(model)["scaled_dot_product_attention"] == 2
    model.float().load_state_dict(model_of("gpt").state_dict())
    assert_same_step(model_of("gpt"), model)
    assert run(model)["scaled_dot_product_attention"] == 2


def test_a_model_that_went_through_the_meta_device_runs_fused() -> None:
    model, state = optimized(model_of("gpt")), model_of("gpt").state_dict()
    assert model.to("meta")(tokens().to("meta")).is_meta
    model.to_empty(device="cpu").load_state_dict(state)
    assert_close(model(tokens()), model_of("gpt")(tokens()))
    assert run(model)["scaled_dot_product_attention"] == 2


def load_parameters(model: nn.Module) -> None:
    model.load_state_dict({n: 1.1 * w for n, w in model.state_dict().items()})


def assign_parameters(model: nn.Module) -> None:
    model.load_state_dict({n: w.clone() * 1.1 for n, w in model.state_dict().items()}, assign=True)


def replace_linears(model: nn.Module) -> None:
    for linear in linears(model):
        linear.weight, linear.bias = nn.Parameter(linear.weight.detach() * 1.1), None


def initialised(model: nn.Module) -> None:
    torch.manual_seed(5)
    model.apply(lambda m: nn.init.normal_(m.weight, std=0.1) if isinstance(m, nn.Linear) else None)


def remove_first_block(model: nn.Module) -> None:
    del model.blocks[0]
    model.blocks.append(copy.deepcopy(model.blocks[0]))


@pytest.mark.parametrize(
    "change", [load_parameters, assign_parameters, replace_linears, initialised, remove_first_block]
)
def test_changes_of_an_optimized_model_take_effect(change: Change) -> None:
    plain, model = model_of("gpt"), optimized(model_of("gpt"))
    for m in (plain, model):
        change(m)
    assert_same_step(plain, model)
    assert run(model)["scaled_dot_product_attention"] == 2


def test_a_layer_that_is_added_later_is_optimized_when_asked_again() -> None:
    model = optimized(model_of("gpt"))
    model.blocks.append(GptBlock(0.0))
    assert run(model)["scaled_dot_product_attention"] == 2
    assert run(optimized(model))["scaled_dot_product_attention"] == 3


@pytest.mark.parametrize("name", ["bert", "gpt", "llama"])
def test_hooks_on_every_module_see_the_same_as_before(name: str) -> None:
    """If a fused operator would bypass an observed child, the child is called."""
    seen: dict[str, list[str]] = {"plain": [], "optimized": []}
    models = {"plain": model_of(name), "optimized": optimized(model_of(name))}
    for key, model in models.items():
        for path, module in model.named_modules():
            module.register_forward_hook(lambda m, i, o, path=path, key=key: seen[key].append(path))
            module.register_full_backward_hook(lambda m, i, o, path=path, key=key: seen[key].append("after " + path))
        model(tokens()).sum().backward()
    assert seen["optimized"] == seen["plain"]


def test_a_hook_on_a_block_leaves_it_fused() -> None:
    model, seen = optimized(model_of("gpt")), list[tuple[int, ...]]()
    for block in model.blocks:
        block.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    assert run(model) == run(optimized(model_of("gpt")))
    assert len(seen) == 4
