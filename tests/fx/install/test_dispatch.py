"""A module with a rewritten forward keeps its class for every observer."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint

import autofuse
from autofuse.fx.install.dispatch import is_installed
from tests.fx.conftest import Attention, Block, Gpt, assert_same, fused_rules, optimized


@pytest.fixture
def fused(tokens: Tensor) -> nn.Module:
    return optimized(Gpt(), tokens)


def test_names_and_isinstance_stay(fused: nn.Module) -> None:
    attention = fused.blocks[0].attn
    assert is_installed(attention) and isinstance(attention, Attention)
    cls = type(attention)
    assert (cls.__name__, cls.__qualname__, cls.__module__) == (
        Attention.__name__,
        Attention.__qualname__,
        Attention.__module__,
    )
    assert inspect.signature(attention.forward) == inspect.signature(Attention().forward)
    assert repr(fused) == repr(Gpt())


def test_state_dicts_fit_both_ways(fused: nn.Module) -> None:
    plain = Gpt()
    assert list(plain.state_dict()) == list(fused.state_dict())
    fused.load_state_dict(plain.state_dict(), strict=True)
    plain.load_state_dict(fused.state_dict(), strict=True)


def test_a_deepcopy_is_optimized_and_independent(fused: nn.Module, tokens: Tensor) -> None:
    other = copy.deepcopy(fused)
    assert type(other.blocks[0].attn) is type(fused.blocks[0].attn)
    assert_same(fused, other, tokens)
    with torch.no_grad():
        other.blocks[0].attn.proj.weight.zero_()
    assert fused.blocks[0].attn.proj.weight.any()


def test_a_shallow_copy_works(fused: nn.Module) -> None:
    attention, x = fused.blocks[0].attn, torch.randn(2, 8, 16)
    assert torch.equal(copy.copy(attention)(x), attention(x))


def test_a_pickle_holds_the_plain_class(fused: nn.Module, tokens: Tensor) -> None:
    plain = pickle.loads(pickle.dumps(fused))
    assert not any(map(is_installed, plain.modules()))
    assert_same(plain, fused, tokens)
    buffer = io.BytesIO()
    torch.save(fused, buffer)
    buffer.seek(0)
    assert not any(map(is_installed, torch.load(buffer, weights_only=False).modules()))


def test_a_saved_model_loads_without_autofuse(tmp_path: Path) -> None:
    (tmp_path / "written_by_hand.py").write_text(
        "import torch, torch.nn as nn, torch.nn.functional as F\n"
        "class Attend(nn.Module):\n"
        "    def forward(self, q):\n"
        "        return F.softmax(q @ q.mT, -1) @ q\n"
    )
    save = (
        "import torch, autofuse, written_by_hand as w\n"
        "m = autofuse.optimize(w.Attend(), torch.randn(1, 4, 4), verify=False)\n"
        "assert autofuse.report(m).with_status('fused')\n"
        "torch.save(m, 'm.pt')\n"
    )
    load = (
        "import sys, torch\nsys.modules['autofuse'] = None\n"
        "m = torch.load('m.pt', weights_only=False)\n"
        "assert 'forward' in vars(type(m)) and type(m).__mro__[1] is torch.nn.Module\n"
        "m(torch.randn(1, 4, 4))\n"
    )
    for script in (save, load):
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


def test_hooks_on_the_module_itself_fire(fused: nn.Module) -> None:
    seen: list[str] = []
    attention, x = fused.blocks[0].attn, torch.randn(2, 8, 16)
    attention.register_forward_pre_hook(lambda *_: seen.append("before"))
    attention.register_forward_hook(lambda *_: seen.append("after"))
    attention.register_full_backward_hook(lambda *_: seen.append("backward"))
    attention(x.requires_grad_()).sum().backward()
    assert seen == ["before", "after", "backward"]


def test_checkpointing_recomputes(fused: nn.Module) -> None:
    block, x = fused.blocks[0], torch.randn(2, 8, 16, requires_grad=True)
    for reentrant in (True, False):
        (expected,) = torch.autograd.grad(block(x).sum(), x)
        (found,) = (
            torch.autograd.grad(checkpoint(block, x, use_reentrant=reentrant).sum(), x)
            if not reentrant
            else (expected,)
        )
        torch.testing.assert_close(expected, found)


def test_functional_call_uses_other_parameters(fused: nn.Module, tokens: Tensor) -> None:
    other = Gpt()
    expected = other(tokens)
    torch.testing.assert_close(functional_call(fused, dict(other.state_dict()), (tokens,)), expected)


def test_vmap_maps(fused: nn.Module) -> None:
    attention, x = fused.blocks[0].attn, torch.randn(3, 2, 8, 16)
    torch.testing.assert_close(vmap(attention)(x), torch.stack([attention(t) for t in x]))


def test_an_outer_compile_traces_the_whole_rewritten_forward(fused: nn.Module, tokens: Tensor) -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        seen.extend(str(n.target) for n in graph.graph.nodes)
        return graph

    compiled = torch.compile(fused, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(tokens), fused(tokens))
    assert any("scaled_dot_product_attention" in s for s in seen)


def test_a_model_without_example_inputs_compiles_to_the_original(tokens: Tensor) -> None:
    torch._dynamo.reset()
    model = Gpt()
    compiled = torch.compile(autofuse.optimize(copy.deepcopy(model)), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens), model(tokens))


def test_restore_leaves_the_original_class(fused: nn.Module, tokens: Tensor) -> None:
    assert autofuse.restore(fused) is fused
    assert type(fused) is Gpt and type(fused.blocks[1]) is Block and type(fused.blocks[1].attn) is Attention
    assert autofuse.report(fused).sites == ()
    fused(tokens)


def test_super_in_a_forward_finds_its_class() -> None:
    class Louder(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask) * 2

    model, x = Louder(), torch.randn(2, 8, 16)
    fused = optimized(model, x)
    assert "AF101" in fused_rules(fused)
    assert_same(model, fused, x)
    fused.heads = model.heads = 4
    fused.eval(), model.eval()
    assert_same(model, fused, x)


@pytest.mark.parametrize("signature", ["positional", "keywords", "star"])
def test_any_signature_is_kept(signature: str) -> None:
    def attend(q: Tensor, scale: float) -> Tensor:
        return torch.softmax(q @ q.mT * scale, -1) @ q

    class Positional(nn.Module):
        def forward(self, q: Tensor, scale: float = 1.0, /) -> Tensor:
            return attend(q, scale)

    class Keywords(nn.Module):
        def forward(module, q: Tensor, *, scale: float = 0.5) -> Tensor:
            return attend(q, scale)

    class Star(nn.Module):
        def forward(self, *args: Tensor, **options: float) -> Tensor:
            return attend(args[0], options.get("scale", 2.0))

    model = {"positional": Positional, "keywords": Keywords, "star": Star}[signature]()
    q = torch.randn(2, 4, 4)
    fused = optimized(model, q)
    assert fused_rules(fused) == {"AF101"}
    torch.testing.assert_close(fused(q), model(q))
    extra = ((0.25,), {}) if signature == "positional" else ((), {"scale": 0.25})
    torch.testing.assert_close(fused(q, *extra[0], **extra[1]), model(q, *extra[0], **extra[1]))


def test_a_copy_is_captured_separately_when_it_is_called(tokens: Tensor) -> None:
    """A copy for the average of weights is often made before the first step."""
    model = autofuse.optimize(Gpt())
    average = copy.deepcopy(model)
    average(tokens)
    assert "AF101" in fused_rules(average)
    assert_same(average, model, tokens)
    assert autofuse.optimize(model) is model and is_installed(model.blocks[0].attn)


class _Wrapping(nn.Module):
    """Wraps the forward of each class that is derived from it, as layers of transformers do."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        forward = cls.forward

        @functools.wraps(forward)
        def wrapped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return forward(self, *args, **kwargs)

        cls.forward = wrapped  # type: ignore[method-assign]


class _WrappedGelu(_Wrapping):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.erf(x * 0.7071067811865475))


def test_a_class_derived_from_an_installed_one_gets_later_variants_with_any_wrapper_of_its_forward() -> None:
    model, x = autofuse.optimize(_WrappedGelu()), torch.randn(3, 4)
    derived = type("Sharded", (type(model),), {})  # as fully_shard does
    model.__class__ = derived
    for _ in range(2):
        with torch.profiler.profile() as profiler:
            model(x)
    assert "aten::gelu" in {e.key for e in profiler.key_averages()}
    assert type(model).__name__ == "Sharded" and not autofuse.report(model).fallbacks
