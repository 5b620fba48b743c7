"""Code that asks for the class of a module gets its class: the table of
docs/decisions/dispatcher-instead-of-subclass.md."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
)
from torch.nn.utils import parametrize

import autofuse
from autofuse.fx.install.dispatch import is_installed
from autofuse.fx.trace.own_forward import ENTRY, own_forward
from tests.fx.conftest import Attention, Block, Gpt, assert_same, fused_rules, optimized

FORWARD: FunctionType = own_forward(Attention)  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def nothing_before() -> None:
    """Removes what other tests have left."""
    gc.collect()
    autofuse.restore(nn.Identity())  # removes dispatchers that no module needs any more


@pytest.fixture
def fused(tokens: Tensor) -> nn.Module:
    return optimized(Gpt(), tokens)


# The table.


def test_the_exact_type_is_the_users(fused: nn.Module) -> None:
    assert type(fused) is Gpt and type(fused.blocks[0]) is Block
    assert [n for n, m in fused.named_modules() if type(m) is Attention] == ["blocks.0.attn", "blocks.1.attn"]
    assert {type(m): m for m in fused.modules()}.keys() == {type(m) for m in Gpt().modules()}


def test_super_of_the_modules_own_class_does_not_recurse() -> None:
    class Louder(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super(self.__class__, self).forward(x, mask) * 2

    model, x = Louder(), torch.randn(2, 8, 16)
    fused = optimized(model, x)
    assert "AF101" in fused_rules(fused)
    assert_same(model, fused, x)


def test_a_policy_by_exact_class_finds_it(fused: nn.Module, tokens: Tensor) -> None:
    expected = fused(tokens)
    apply_activation_checkpointing(fused, check_fn=lambda m: type(m) is Attention)
    assert isinstance(fused.blocks[0].attn, CheckpointWrapper)
    torch.testing.assert_close(fused(tokens), expected)


def test_a_class_that_is_derived_from_it_later_runs_fused(fused: nn.Module) -> None:
    """As fully_shard and parametrizations derive them."""

    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    attention, x = fused.blocks[0].attn, torch.randn(2, 8, 16)
    expected = attention(x)
    attention.__class__ = type("FSDPAttention", (nn.Module, Attention)[1:], {})
    assert is_installed(attention) and torch.equal(attention(x), expected)
    parametrize.register_parametrization(attention.proj, "weight", Halved())
    assert not torch.equal(attention(x), expected)


def test_other_instances_of_the_class_run_what_they_ran(fused: nn.Module) -> None:
    plain, x = Attention(), torch.randn(2, 8, 16)
    assert Attention.forward is not FORWARD and not is_installed(plain) and ENTRY not in vars(plain)
    assert torch.equal(plain(x), FORWARD(plain, x))


def test_the_class_has_its_original_forward_again(fused: nn.Module) -> None:
    before = {**vars(Attention)}
    other = optimized(Attention(), torch.randn(2, 8, 16))
    autofuse.restore(fused)
    assert Attention.forward is before["forward"]  # the other still needs it
    autofuse.restore(other)
    assert Attention.forward is FORWARD and ENTRY not in vars(Attention)


def test_a_deleted_model_leaves_nothing_behind(tokens: Tensor) -> None:
    model = optimized(Gpt(), tokens)
    assert Attention.forward is not FORWARD
    del model
    gc.collect()
    optimized(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2))  # the next call of optimize
    assert Attention.forward is FORWARD and ENTRY not in vars(Attention)


def test_a_forward_that_is_inherited_stays_so() -> None:
    class Derived(Attention):
        pass

    fused = optimized(Derived(), torch.randn(2, 8, 16))
    assert is_installed(fused) and "forward" not in vars(Derived) and ENTRY not in vars(Derived)
    autofuse.restore(fused)
    assert Derived.forward is FORWARD


# Copies and pickles.


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("example", [True, False])
def test_a_copy_outlives_the_restore_of_its_original(copied: Callable[[Any], Any], example: bool) -> None:
    x = torch.randn(2, 8, 16)
    model = autofuse.optimize(Attention(), x if example else None, verify=False, tune=False)
    made = copied(model)
    expected = FORWARD(model, x)
    for _ in range(2):
        torch.testing.assert_close(made(x), expected)
    autofuse.restore(model)
    assert not is_installed(model) and is_installed(made)
    with torch.profiler.profile() as profiler:
        torch.testing.assert_close(made(x), expected)
    assert "aten::scaled_dot_product_attention" in {e.key for e in profiler.key_averages()}


def test_a_pickle_has_an_entry_of_plain_python_and_loads_with_weights_only(fused: nn.Module) -> None:
    attention, x = fused.blocks[0].attn, torch.randn(2, 8, 16)
    text = pickle.dumps(attention)
    assert b"autofuse" not in text.replace(ENTRY.encode(), b"")
    buffer = io.BytesIO()
    torch.save(attention, buffer)
    buffer.seek(0)
    safe = [Attention, nn.Linear, nn.Dropout, nn.LayerNorm]
    with torch.serialization.safe_globals(safe):
        loaded = torch.load(buffer, weights_only=True)
    for made in (pickle.loads(text), loaded):
        assert not is_installed(made)
        torch.testing.assert_close(made(x), attention(x))


def test_a_class_with_a_deepcopy_of_its_own_makes_a_plain_copy() -> None:
    class Own(Attention):
        def __deepcopy__(self, memo: dict[int, Any]) -> Own:
            made = Own()
            made.load_state_dict(self.state_dict())
            return made

    model, x = autofuse.optimize(Own(), torch.randn(2, 8, 16), verify=False, tune=False), torch.randn(2, 8, 16)
    made = copy.deepcopy(model)
    assert is_installed(model) and type(made) is Own
    torch.testing.assert_close(made(x), model(x))


def test_a_module_that_hashes_by_content_is_copied() -> None:
    class Hashed(Attention):
        def __hash__(self) -> int:
            return hash(self.heads)

    x = torch.randn(2, 8, 16)
    model = autofuse.optimize(Hashed(), x, verify=False, tune=False)
    torch.testing.assert_close(copy.deepcopy(model)(x), model(x))


# Assignments of the user to the class.


def test_a_forward_that_the_user_puts_in_its_place_runs(fused: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, x = fused.blocks[0].attn, torch.randn(2, 8, 16)
    monkeypatch.setattr(Attention, "forward", lambda self, x, mask=None: x + 1)
    assert torch.equal(attention(x), x + 1) and not is_installed(attention)
    autofuse.restore(fused)
    assert torch.equal(attention(x), x + 1)


def test_a_wrapper_around_the_installed_forward_runs_it_fused(
    fused: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, x = fused.blocks[0].attn, torch.randn(2, 8, 16)
    expected, found = attention(x), Attention.forward
    monkeypatch.setattr(Attention, "forward", lambda self, *args: found(self, *args) * 2)
    with torch.profiler.profile() as profiler:
        torch.testing.assert_close(attention(x), expected * 2)
    assert "aten::scaled_dot_product_attention" in {e.key for e in profiler.key_averages()}
    autofuse.restore(fused)
    torch.testing.assert_close(attention(x), expected * 2)
    autofuse.optimize(fused.blocks[0], torch.randn(2, 8, 16), verify=False, tune=False)
    torch.testing.assert_close(attention(x), expected * 2)


def test_a_dispatcher_that_the_user_assigns_again_works(fused: nn.Module) -> None:
    """The dispatcher is read before restore and assigned after it. It dispatches again if a module runs fused."""
    found, x = Attention.forward, torch.randn(2, 8, 16)
    autofuse.restore(fused)
    Attention.forward = found  # type: ignore[method-assign]
    try:
        again = autofuse.optimize(Attention(), x, verify=False, tune=False)
        assert is_installed(again)
        torch.testing.assert_close(again(x), FORWARD(again, x))
        autofuse.restore(again)
        assert Attention.forward is FORWARD
    finally:
        Attention.forward = FORWARD  # type: ignore[method-assign]


def test_a_subclass_that_overrides_forward_and_calls_it_is_fused_separately(fused: nn.Module) -> None:
    class Scaled(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask) * self.scale

    model, x = Scaled(), torch.randn(2, 8, 16)
    model.scale = 3.0
    expected = model(x)
    made = autofuse.optimize(model, x, verify=False, tune=False)
    torch.testing.assert_close(made(x), expected)
    made.scale = 5.0
    torch.testing.assert_close(made(x), expected / 3 * 5)


def test_an_instance_with_another_class_runs_that_class() -> None:
    class Narrower(Attention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return x[:1]

    model, x = autofuse.optimize(Attention(), torch.randn(2, 8, 16), verify=False, tune=False), torch.randn(2, 8, 16)
    model.__class__ = Narrower
    assert torch.equal(model(x), x[:1])


# Sessions.


def test_two_sessions_and_other_options_each_have_their_own() -> None:
    x = torch.randn(2, 8, 16)
    one = autofuse.optimize(Attention(), x, verify=False, tune=False)
    other = autofuse.optimize(Attention(), x, verify=False, tune=False, ignore="AF101")
    assert is_installed(one) and "AF101" not in {s.rule for s in autofuse.report(other).with_status("fused")}
    autofuse.optimize(one, x, verify=False, tune=False, ignore="AF101")
    assert "AF101" not in {s.rule for s in autofuse.report(one).with_status("fused")}
    autofuse.optimize(one, x, verify=False, tune=False)
    with torch.profiler.profile() as profiler:
        torch.testing.assert_close(one(x), FORWARD(one, x))
    assert "aten::scaled_dot_product_attention" in {e.key for e in profiler.key_averages()}


def test_a_module_in_which_nothing_is_fused_has_no_entry(tokens: Tensor) -> None:
    fused = autofuse.optimize(Gpt(), tokens, ignore=["AF1", "AF2", "AF3", "AF4", "AF5"])
    assert not any(ENTRY in vars(m) for m in fused.modules())
    assert Attention.forward is FORWARD


def test_a_root_of_a_class_of_torch_leaves_that_class_unchanged() -> None:
    original, x = nn.Sequential.forward, torch.randn(2, 8, 16)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    expected = model(x)
    autofuse.optimize(model, x, verify=False, tune=False)
    torch.testing.assert_close(model(x), expected)
    assert type(model) is nn.Sequential
    autofuse.restore(model)
    assert nn.Sequential.forward is original
