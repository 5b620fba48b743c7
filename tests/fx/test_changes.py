"""After any change of an optimized model, it computes what a model computes that was never optimized."""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune

import autofuse
from tests.fx.conftest import Attention, Block, assert_same, fused_rules, optimized

Change = Callable[[Any], object]


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 0.5


class Shifted(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Gated(nn.Module):
    """A gated MLP whose fused operation bypasses its two projections, with its own activation."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def doubled(module: nn.Module, args: object, result: Tensor) -> Tensor:
    return result * 2


def doubled_with_kwargs(module: nn.Module, args: object, kwargs: object, result: Tensor) -> Tensor:
    return result * 2


def tripled(module: nn.Module, given: tuple[Tensor | None, ...], found: object) -> tuple[Tensor | None, ...]:
    return tuple(g if g is None else g * 3 for g in given)


def patch_forward(module: nn.Module) -> None:
    forward = type(module).forward
    module.forward = types.MethodType(lambda self, x: forward(self, x) * 2, module)  # type: ignore[method-assign]


def for_similar_calls(module: nn.Module) -> None:
    """Replaces a parameter by a plain tensor of its name, as old-style reparametrizations and FSDP1 do."""
    weight = module._parameters.pop("weight")
    module.__dict__["weight"] = (weight.detach() * 3).requires_grad_()


def forgotten(module: nn.Module) -> None:
    module._forward_hooks = OrderedDict()
    module.register_forward_hook(doubled)


CHILD: dict[str, Change] = {
    "forward on the instance": patch_forward,
    "forward hook": lambda m: m.register_forward_hook(doubled),
    "forward hook with kwargs": lambda m: m.register_forward_hook(doubled_with_kwargs, with_kwargs=True),
    "forward hook that always runs": lambda m: m.register_forward_hook(doubled, always_call=True),
    "forward pre-hook": lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
    "full backward hook": lambda m: m.register_full_backward_hook(tripled),
    "full backward pre-hook": lambda m: m.register_full_backward_pre_hook(lambda m, found: (found[0] * 3,)),
    "a table of hooks of its own": forgotten,
    "a parametrization": lambda m: parametrize.register_parametrization(m, "weight", Halved()),
    "pruning": lambda m: prune.l1_unstructured(m, "weight", 0.5),
    "a parameter kept elsewhere": for_similar_calls,
    "another weight": lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach() * 2)),
    "a weight that needs no gradient": lambda m: m.weight.requires_grad_(False),
    "no bias": lambda m: setattr(m, "bias", None),
}


@cache
def _build(kind: type[nn.Module], *size: int) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = kind()
    return model, optimized(model, torch.randn(*size))


def pair(kind: type[nn.Module], *size: int) -> tuple[Any, Any, Tensor]:
    """A new model, the same model optimized, and an input."""
    model, fused = _build(kind, *size)
    return copy.deepcopy(model), copy.deepcopy(fused), torch.randn(*size)


def changed(model: nn.Module, path: str, change: Change) -> None:
    torch.manual_seed(3)
    change(model.get_submodule(path))


@pytest.mark.parametrize("path", ["ln_2", "mlp.0"])
@pytest.mark.parametrize("change", CHILD, ids=str)
def test_a_change_to_a_bypassed_child(path: str, change: str) -> None:
    model, fused, x = pair(Block, 2, 8, 16)
    for m in (model, fused):
        changed(m, path, CHILD[change])
    assert_same(model, fused, x)
    assert_same(model.eval(), fused.eval(), x)


@pytest.mark.parametrize("change", ["forward hook", "full backward hook", "a parametrization", "no bias"])
def test_a_change_to_a_projection(change: str) -> None:
    model, fused, x = pair(Gated, 2, 8, 16)
    for m in (model, fused):
        changed(m, "up", CHILD[change])
    assert_same(model, fused, x)


MODEL: dict[str, Change] = {
    "a subclass in place of a child": lambda m: setattr(m.ln_2, "__class__", Shifted),
    "another child": lambda m: setattr(m, "ln_2", nn.Identity()),
    "a norm of another kind": lambda m: setattr(m, "ln_2", nn.RMSNorm(16)),
    "another epsilon": lambda m: setattr(m.ln_2, "eps", 0.5),
    "another approximation": lambda m: setattr(m.mlp[1], "approximate", "tanh"),
    "another activation": lambda m: m.mlp.__setitem__(1, nn.ReLU()),
    "one more layer": lambda m: m.mlp.append(nn.Tanh()),
    "one more layer in between": lambda m: m.mlp.insert(2, nn.Tanh()),
    "a child that is gone": lambda m: m._modules.__setitem__("mlp", nn.Sequential()),
    "another attention": lambda m: setattr(m, "attn", nn.Identity()),
    "dropout": lambda m: setattr(m.attn.drop, "p", 0.0),
    "another number of heads": lambda m: setattr(m.attn, "heads", 4),
    "another number of heads, as a float of numpy": lambda m: setattr(
        m.attn, "heads", pytest.importorskip("numpy").int64(2)
    ),
    "another buffer": lambda m: setattr(m.attn, "bias", torch.ones(1, 1, 32, 32).tril(1)),
    "a buffer in other memory": lambda m: setattr(m.attn.bias, "data", torch.ones(1, 1, 32, 32).tril(2)),
    "a buffer written in place": lambda m: m.attn.bias.fill_(1),
    "double precision": lambda m: m.double(),
    "a forward of its own": lambda m: setattr(m, "forward", lambda x: m.ln_1(x) * 2),
    "weight norm on a projection": lambda m: parametrizations.weight_norm(m.attn.qkv),
}


@pytest.mark.parametrize("change", MODEL, ids=str)
def test_a_change_to_the_model(change: str) -> None:
    model, fused, x = pair(Block, 2, 8, 16)
    for m in (model, fused):
        MODEL[change](m)
    dtype = model.ln_1.weight.dtype
    assert_same(model, fused, x.to(dtype))
    assert_same(model.eval(), fused.eval(), x.to(dtype))


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_a_hook_on_all_modules(kind: str) -> None:
    model, fused, x = pair(Block, 2, 8, 16)
    counts = []
    register = getattr(torch.nn.modules.module, f"register_module_{kind}_hook")
    for m in (model, fused):
        seen: list[str] = []
        handle = register(lambda module, *_, seen=seen: seen.append(type(module).__name__))
        try:
            m(x).sum().backward()
        finally:
            handle.remove()
        counts.append(seen)
    assert counts[0] == counts[1]
    assert_same(model, fused, x)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_another_gradient_mode(mode: Any) -> None:
    model, fused, x = pair(Block, 2, 8, 16)
    model.eval(), fused.eval()
    with mode():
        found, expected = fused(x), model(x)
    assert found.requires_grad == expected.requires_grad and found.is_inference() == expected.is_inference()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_another_default_dtype() -> None:
    model, fused, x = pair(Block, 2, 8, 16)
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(model, fused, x)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_on_and_off_again(dtype: torch.dtype) -> None:
    model, fused, x = pair(Block, 2, 8, 16)
    for enabled in (True, False, True):
        with torch.autocast("cpu", dtype, enabled=enabled):
            found, expected = fused(x), model(x)
        assert found.dtype is expected.dtype
        bound = 16 * torch.finfo(dtype).eps if enabled else 1e-5  # a dozen roundings to that dtype on the way
        torch.testing.assert_close(found, expected, atol=bound * float(expected.abs().max()), rtol=0)


class Scaled(nn.Module):
    """Reads a value that may be any object."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.sizes, self.name, self.options = 0.5, [2, 4], "plain", {"cap": 1.0}

    def forward(self, q: Tensor) -> Tensor:
        scores = q @ q.mT * self.scale * self.options["cap"]
        if self.name == "doubled":
            scores = scores * 2
        if self.sizes[0] != 2:
            scores = scores + 1.0 * q[..., :1]
        return F.softmax(scores, -1) @ q


VALUES: dict[str, Change] = {
    "a tensor that equals the number": lambda m: setattr(m, "scale", torch.tensor(0.5, requires_grad=True)),
    "a parameter": lambda m: (delattr(m, "scale"), setattr(m, "scale", nn.Parameter(torch.tensor(0.5)))),
    "a tensor of several": lambda m: setattr(m, "scale", torch.tensor([0.5, 0.25, 0.5, 0.5])),
    "a list": lambda m: setattr(m, "sizes", [3, 4]),
    "an array": lambda m: setattr(m, "sizes", pytest.importorskip("numpy").array([2, 4])),
    "a tensor for a list": lambda m: setattr(m, "sizes", torch.tensor([2, 4])),
    "a dict of a tensor": lambda m: m.options.update(cap=torch.tensor(1.0)),
    "a dict of more": lambda m: m.options.update(other=None),
    "a text": lambda m: setattr(m, "name", "doubled"),
    "nothing for a text": lambda m: setattr(m, "name", None),
    "an array of numbers": lambda m: setattr(m, "scale", pytest.importorskip("numpy").float32(0.25)),
}


@pytest.mark.parametrize("change", VALUES, ids=str)
def test_a_value_of_another_kind(change: str) -> None:
    model, fused, q = pair(Scaled, 2, 4, 4)
    for m in (model, fused):
        VALUES[change](m)
    found, expected = fused(q), model(q)
    torch.testing.assert_close(found, expected)
    assert found.requires_grad == expected.requires_grad


def test_an_attribute_that_is_gone_is_missed_by_the_original_only() -> None:
    fused = optimized(Scaled(), torch.randn(2, 4, 4))
    del fused.name
    with pytest.raises(AttributeError, match="name"):
        fused(torch.randn(2, 4, 4))


def test_a_child_that_is_gone_is_missed_by_the_original_only() -> None:
    fused = optimized(Block(), torch.randn(2, 8, 16))
    del fused.ln_2
    with pytest.raises(AttributeError, match="ln_2"):
        fused(torch.randn(2, 8, 16))


def test_an_argument_that_is_not_a_tensor_is_refused_by_the_original_only() -> None:
    fused = optimized(Attention(), torch.randn(2, 8, 16))
    for wrong in (None, "text", 3, [1, 2]):
        with pytest.raises((AttributeError, TypeError)):
            fused(wrong)


def test_a_parameter_that_sharding_keeps_as_a_plain_tensor_is_still_read_past() -> None:
    model, x = Block(), torch.randn(2, 8, 16)
    fused = optimized(model, x)
    for m in (model, fused):
        for layer in (m.ln_2, m.mlp[0]):  # as FSDP1 leaves it: no parameter, a view under the same name
            view = layer._parameters.pop("weight").detach().clone()
            layer.__dict__["weight"] = view
    torch.testing.assert_close(fused(x), model(x), atol=1e-5, rtol=1e-5)
    assert not autofuse.report(fused).fallbacks


class Norm(nn.Module):
    """Reads its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(16)), nn.Parameter(torch.rand(16))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


def test_a_parametrization_of_the_module_itself_is_read_and_removed() -> None:
    model, fused, x = pair(Norm, 2, 8, 16)
    for m in (model, fused):
        parametrize.register_parametrization(m, "weight", Halved())
    assert_same(model, fused, x)
    for m in (model, fused):
        parametrize.remove_parametrizations(m, "weight")
    assert_same(model, fused, x)
    assert not autofuse.report(fused).fallbacks


def test_parameters_given_to_a_call_are_used() -> None:
    model, fused, x = pair(Norm, 2, 8, 16)
    given = {"weight": torch.rand(16), "bias": torch.rand(16)}
    torch.testing.assert_close(functional_call(fused, given, (x,)), functional_call(model, given, (x,)))


def test_a_compiler_sees_a_change_that_was_made_before() -> None:
    torch._dynamo.reset()
    model, fused, x = pair(Block, 2, 8, 16)
    for m in (model, fused):
        m.attn.bias.fill_(1)
        m.ln_2.register_forward_hook(doubled)
    compiled = torch.compile(fused, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), model(x), atol=1e-5, rtol=1e-5)


def test_the_changed_programs_contain_fused_sites() -> None:
    kinds = {Block: {"AF101", "AF203", "AF304"}, Gated: {"AF303"}}
    assert all(fused_rules(_build(kind, 2, 8, 16)[1]) >= rules for kind, rules in kinds.items())
    assert fused_rules(_build(Scaled, 2, 4, 4)[1]) >= {"AF101"}
