"""The masks of transformers' models are computed when they are read, with the numbers that transformers computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autofuse.fx.install.dispatch import install_forward, restore
from autofuse.fx.lazy.mask_factories import factories_of, forward_with_lazy_masks
from autofuse.ops.lazy_masks import LazyMask, lazy_at_any_size

transformers = pytest.importorskip("transformers")
masking = pytest.importorskip("transformers.masking_utils")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")

LENGTH = 10
IDS = torch.randint(1, 50, (2, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def however_small_masks() -> Iterator[None]:
    """Small masks are lazy, too."""
    with lazy_at_any_size():
        yield


def model(window: int | None = None) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 8, "attn_implementation": "eager", "pad_token_id": 0}  # fmt: skip
    if window is None:
        return transformers.LlamaModel(transformers.LlamaConfig(**sizes)).double()
    config = transformers.Gemma2Config(**sizes, sliding_window=window, head_dim=4, num_key_value_heads=2)
    return transformers.Gemma2Model(config).double()


class Masks:
    """Records the masks that the first layer of a model gets."""

    def __init__(self, of: Any) -> None:
        self.model, self.seen = of, []
        of.layers[0].register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self.seen.append(kwargs["attention_mask"])

    def __call__(self, **given: Any) -> tuple[Any, Tensor]:
        """The mask and the result of one call."""
        result = self.model(**{"input_ids": IDS, **given}).last_hidden_state
        return self.seen.pop(), result


def is_same(x: Any, y: Any) -> bool:
    """Whether two masks, or results, hold the same numbers. A row in which all keys are dropped is nan."""
    if x is None or y is None:
        return x is y
    return bool(((x == y) | (x.isnan() & y.isnan())).all())


def both(**options: Any) -> tuple[Masks, Masks]:
    """A model, and a copy of it that passes lazy masks."""
    plain = model(**options)
    changed = copy.deepcopy(plain)
    assert install_forward(changed, forward_with_lazy_masks)
    return Masks(plain), Masks(changed)


def test_the_second_call_gets_a_lazy_mask_and_computes_the_same() -> None:
    plain, changed = both()
    wanted, result = plain()
    for lazy in (False, True, True):
        mask, found = changed()
        assert isinstance(mask, LazyMask) is lazy
        assert is_same(found, result)
        assert is_same(mask, wanted) and mask.stride() == wanted.stride()


def _padded(side: slice) -> Tensor:
    mask = torch.ones_like(IDS)
    mask[0, side] = 0
    return mask


CALLS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "padding right": lambda m: {"attention_mask": _padded(slice(-3, None))},
    "padding left": lambda m: {"attention_mask": _padded(slice(0, 3))},
    "packed documents": lambda m: {"use_cache": False, "position_ids": torch.arange(LENGTH).remainder(5)[None]},
    "a mask of four dimensions": lambda m: {"attention_mask": torch.zeros(2, 1, LENGTH, LENGTH).double()},
    "keys of an earlier call": lambda m: {"past_key_values": m(input_ids=IDS[:, :4]).past_key_values},
    "another length": lambda m: {"input_ids": IDS[:, :-1]},
}


@pytest.mark.parametrize("given", CALLS.values(), ids=CALLS)
def test_another_call_gets_its_own_mask(given: Callable[[Any], dict[str, Any]]) -> None:
    plain, changed = both()
    changed(), changed()
    for _ in range(2):
        (wanted, result), (mask, found) = (each(**given(each.model)) for each in (plain, changed))
        assert is_same(mask, wanted) and is_same(found, result)
        mask, found = changed()
        assert isinstance(mask, LazyMask), "the first kind of call is still known"
        assert torch.equal(found, plain()[1])


def test_a_padding_mask_is_read_at_each_call() -> None:
    plain, changed = both()
    given = torch.ones_like(IDS)
    for step in range(4):
        given[1, -step:] = 0 if step == 3 else 1
        (wanted, _), (mask, _) = plain(attention_mask=given), changed(attention_mask=given)
        assert is_same(mask, wanted)
        assert isinstance(mask, LazyMask) is (step in (1, 2))


CHANGES: dict[str, Callable[[Any, pytest.MonkeyPatch], object]] = {
    "the configuration": lambda m, patch: setattr(m.config, "is_causal", False),
    "the function of the model's module": lambda m, patch: patch.setattr(
        llama, "create_causal_mask", lambda **_: torch.zeros(2, 1, LENGTH, LENGTH).double()
    ),
    "a function that it calls": lambda m, patch: patch.setattr(
        masking, "causal_mask_function", masking.bidirectional_mask_function
    ),
    "the registry": lambda m, patch: patch.setitem(
        masking.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "eager", lambda **k: masking.eager_mask(**k) * 0.5
    ),
    "the code of the forward": lambda m, patch: patch.setattr(
        type(m).forward.__wrapped__.__wrapped__, "__defaults__", (None, _padded(slice(0, 3)), None, None, None, None)
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_inputs_of_a_lazy_mask_are_compared_at_each_call(
    change: Callable[[Any, pytest.MonkeyPatch], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, changed = both()
    before = plain()[0]
    changed(), changed()
    change(plain.model, monkeypatch)
    changed.model.config = plain.model.config
    for _ in range(2):
        (wanted, result), (mask, found) = plain(), changed()
        assert is_same(mask, wanted) and is_same(found, result)
    assert not is_same(wanted, before), "the change is one"


def test_a_window_that_drops_keys_is_made_and_a_wider_one_is_not() -> None:
    for window, lazy in ((4, False), (64, True)):
        plain, changed = both(window=window)
        wanted, result = plain()
        changed()
        mask, found = changed()
        assert isinstance(mask, LazyMask) is lazy
        assert is_same(mask, wanted) and is_same(found, result)


def test_observers_get_plain_masks() -> None:
    _, changed = both()
    changed(), changed()
    with torch.device("cpu"):  # a mode
        assert type(changed()[0]) is Tensor
    with torch.inference_mode():
        assert type(changed()[0]) is Tensor
    changed.model.layers[0].compile(backend="eager")
    assert type(changed()[0]) is Tensor


def test_restore_removes_lazy_masks_completely() -> None:
    _, changed = both()
    changed()
    assert llama.create_causal_mask is masking.create_causal_mask
    restore(changed.model)
    assert type(changed()[0]) is Tensor and "forward" not in vars(changed.model)


def test_a_copy_passes_lazy_masks_too() -> None:
    _, changed = both()
    changed()
    made = Masks(copy.deepcopy(changed.model))
    assert isinstance(made()[0], LazyMask)


def _writes_globals(self: Any, x: Tensor) -> Tensor:
    global COUNT
    COUNT = 1
    return create_causal_mask(x)  # type: ignore[name-defined]  # noqa: F821


def test_a_forward_that_makes_no_masks_or_writes_globals_stays() -> None:
    assert factories_of(nn.Linear.forward) == () and forward_with_lazy_masks(nn.Linear.forward) is None
    _writes_globals.__globals__["create_causal_mask"] = masking.create_causal_mask
    try:
        assert factories_of(_writes_globals) == ("create_causal_mask",)
        assert forward_with_lazy_masks(_writes_globals) is None
    finally:
        del _writes_globals.__globals__["create_causal_mask"]
