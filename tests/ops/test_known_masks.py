"""Attention masks are read once, and the result is valid until the next write."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.kernels.operation import record_calls
from autofuse.kernels.policy import using
from autofuse.ops import known_masks
from autofuse.ops.known_masks import KnownMask, keeps_in_each_row, known_mask

T = 7
FILLS = {"-inf": -math.inf, "minimum": None, "-1e9": -1e9}


def causal(t: int = T) -> Tensor:
    return torch.ones(t, t, dtype=torch.bool).tril()


def documents() -> Tensor:
    of = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    return causal() & (of[:, None] == of)


KINDS: dict[str, Callable[[], Tensor]] = {
    "causal": causal,
    "causal of two batches": lambda: causal().expand(2, 1, T, T).clone(),
    "causal, one for all batches": lambda: causal().expand(2, 1, T, T),
    "window": lambda: causal().triu(-2),
    "documents": documents,
    "padded on the right": lambda: (causal() & (torch.arange(T) < 5)).expand(2, 1, T, T).clone(),
    "padded on the left": lambda: (causal() & (torch.arange(T) > 1)).expand(2, 1, T, T).clone(),
    "padding alone": lambda: (torch.arange(T) < torch.tensor([5, 7])[:, None])[:, None, None],
    "all kept": lambda: torch.ones(2, 1, T, T, dtype=torch.bool),
    "all kept, by keys": lambda: torch.ones(2, 1, 1, T, dtype=torch.bool),
    "nothing kept": lambda: torch.zeros(T, T, dtype=torch.bool),
    "one more than causal": lambda: causal().index_put((torch.tensor(2), torch.tensor(3)), torch.tensor(True)),
    "one fewer than causal": lambda: causal().index_put((torch.tensor(4), torch.tensor(1)), torch.tensor(False)),
    "causal in one batch of two": lambda: torch.stack((causal(), causal().triu(-2)))[:, None],
    "after the query": lambda: causal().mT,
}


def additive_mask(kept: Tensor, fill: float | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros where `kept`, otherwise the fill or the lowest number."""
    amount = torch.finfo(dtype).min if fill is None else fill
    return torch.zeros(kept.shape, dtype=dtype).masked_fill(~kept, amount)


def operands(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(2, 3, T, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    q, k, v = (x.to(dtype).requires_grad_() for x in made)
    return q, k, v


def hand_written(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, fill: float | None) -> Tensor:
    """The result of a program without any kernel. Rows of -inf only give 0."""
    scores = q @ k.mT * 0.5
    if mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, -math.inf if fill is None else fill)
    else:
        scores = scores + mask
    empty = (scores.detach() == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0) @ v


def assert_equal_to_the_program(mask: Tensor, fill: float | None = None, dtype: torch.dtype = torch.float64) -> None:
    """Compares outputs and gradients twice: when the mask is read, and when it is known."""
    q, k, v = operands(dtype)
    expected = hand_written(q, k, v, mask, fill)
    weight = torch.linspace(-1, 1, expected.numel(), dtype=expected.dtype).view_as(expected)
    wanted = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    for _ in range(2):
        result = ops.attention(q, k, v, mask=mask, scale=0.5, fill=fill)
        found = torch.autograd.grad((result * weight).sum(), (q, k, v))
        torch.testing.assert_close(result, expected)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", FILLS)
def test_an_added_mask_gives_what_the_program_gives(kind: str, fill: str, dtype: torch.dtype) -> None:
    if kind == "nothing kept" and fill != "-inf":
        return  # rows of fills alone are test_finite_fills.py's and test_attention.py's
    assert_equal_to_the_program(additive_mask(KINDS[kind](), FILLS[fill], dtype), dtype=dtype)


@pytest.mark.parametrize("fill", [None, -1e9, -30.0])
@pytest.mark.parametrize("kind", KINDS)
def test_a_boolean_mask_gives_what_the_program_gives(kind: str, fill: float | None) -> None:
    assert_equal_to_the_program(KINDS[kind](), fill)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", ["boolean", *FILLS])
def test_a_mask_is_recognized(kind: str, fill: str) -> None:
    kept = KINDS[kind]()
    known = known_mask(kept if fill == "boolean" else additive_mask(kept, FILLS[fill]))
    assert known is not None
    square = kept.shape[-2:] == (T, T)
    assert known.keeps_all is bool(kept.all())
    assert known.is_causal is (square and bool((kept == causal()).all()))
    assert known.keeps_in_each_row is bool(kept.any(-1).all())


@pytest.mark.parametrize("t", [2, 511, 512, 513, 1025])
@pytest.mark.parametrize("boolean", [True, False])
def test_every_entry_of_a_long_mask_is_read(t: int, boolean: bool) -> None:
    mask = causal(t) if boolean else additive_mask(causal(t), None)
    assert known_mask(mask) == KnownMask(False, True, -math.inf if boolean else torch.finfo(torch.float32).min, True)
    for row, column in ((t - 1, 0), (t - 2, t - 1), (0, 1), (t // 2, t // 2), (t - 1, t - 2)):
        other = mask.clone()
        other[row, column] = not other[row, column] if boolean else -1.0
        assert known_mask(other).is_causal is False  # type: ignore[union-attr]


NOT_MASKS = {
    "a learned mask": lambda: torch.zeros(T, T, requires_grad=True),
    "a vector": lambda: torch.ones(T, dtype=torch.bool),
    "a fake": lambda: torch.zeros(T, T, device="meta"),
}


@pytest.mark.parametrize("what", NOT_MASKS)
def test_masks_that_cannot_be_read_are_unknown(what: str) -> None:
    assert known_mask(NOT_MASKS[what]()) is None


OTHERS = {
    "a bias beside causality": lambda: additive_mask(causal(), None) + torch.linspace(0, 1, T),
    "nan": lambda: additive_mask(causal(), None).index_put((torch.tensor(3), torch.tensor(0)), torch.tensor(math.nan)),
    "nan that is dropped": lambda: additive_mask(causal(), None).index_put(
        (torch.tensor(0), torch.tensor(3)), torch.tensor(math.nan)
    ),
    "a fill that scores reach": lambda: additive_mask(causal(), -20.0),
    "numbers that are added": lambda: causal().to(torch.int64),
    "more keys than queries": lambda: torch.ones(T, T + 2, dtype=torch.bool).tril(),
}


@pytest.mark.parametrize("what", OTHERS)
def test_masks_that_are_not_causal_are_not_recognized_as_causal(what: str) -> None:
    known = known_mask(OTHERS[what]())
    assert known is None or not known.is_causal and not known.keeps_all


WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda m: m[2, 0].logical_not_() if m.dtype is torch.bool else m[2, 0].sub_(1),
    "through data": lambda m: m.data[5].zero_() if m.dtype is torch.bool else m.data[5].fill_(-1.0),
    "through detach": lambda m: m.detach().copy_(m.mT.clone()),
    "through numpy": lambda m: m.numpy().__setitem__((3, 1), m.dtype is not torch.bool),
    "through DLPack": lambda m: (
        torch.from_dlpack(m.view(torch.uint8))[4].zero_()
        if m.dtype is torch.bool
        else torch.from_dlpack(m)[4].fill_(-7.0)
    ),
    "through set_": lambda m: m.set_(m.mT.contiguous()),
    "through a view": lambda m: m[1:3, :2].zero_() if m.dtype is torch.bool else m[1:3, :2].fill_(-2.0),
}


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_ends_what_is_known(write: str, boolean: bool) -> None:
    mask = causal() if boolean else additive_mask(causal(), -math.inf)
    assert_equal_to_the_program(mask)
    WRITES[write](mask)
    assert known_mask(mask).is_causal is False  # type: ignore[union-attr]
    assert_equal_to_the_program(mask)


def test_a_mask_that_is_written_often_is_read_at_each_call() -> None:
    mask = causal()
    for i in range(8):
        mask[0, 1] = bool(i % 2)
        assert known_mask(mask).is_causal is (i % 2 == 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("inference", [True, False])
def test_a_mask_is_read_once_for_all_layers(monkeypatch: pytest.MonkeyPatch, inference: bool) -> None:
    with torch.inference_mode(inference):
        mask = additive_mask(causal(), None).expand(2, 1, T, T)
        assert known_mask(mask) is not None
        monkeypatch.setattr(known_masks, "_read_on_cpu", lambda m: pytest.fail("it is read again"))
        q, k, v = (x.detach() for x in operands())
        for _ in range(3):
            ops.attention(q, k, v, mask=mask)
            ops.attention(q, k, v, mask=mask if inference else mask[:, :, :, :T])  # as many models slice it
        assert keeps_in_each_row(mask)


def test_memory_that_torch_does_not_own_is_read_at_each_call() -> None:
    array = causal().numpy()
    mask = torch.from_numpy(array)
    assert known_mask(mask).is_causal is True  # type: ignore[union-attr]
    array[6, 0] = False
    assert known_mask(mask).is_causal is False  # type: ignore[union-attr]


def test_nothing_is_stored_for_a_deleted_mask() -> None:
    gc.collect()
    before = len(known_masks._read)
    mask = additive_mask(causal(), None)
    known_mask(mask)
    known_mask(mask[:, :5])
    assert len(known_masks._read) == before + 1
    del mask
    gc.collect()
    assert len(known_masks._read) == before


def test_a_mask_with_more_batches_than_the_query_keeps_them() -> None:
    q, k, v = (x[:1] for x in operands())
    assert ops.attention(q, k, v, mask=causal().expand(2, 1, T, T).clone()).shape == (2, 3, T, 4)


def test_a_causal_mask_counts_as_causal_only_if_lengths_are_equal() -> None:
    q, k, v = operands()
    mask = causal()
    expected = hand_written(q[:, :, :1], k, v, mask[-1:], None)
    torch.testing.assert_close(ops.attention(q[:, :, :1], k, v, mask=mask[-1:], scale=0.5), expected)


def test_a_compiler_traces_no_read_of_a_mask() -> None:
    q, k, v = operands()
    mask = causal()
    run = torch.compile(lambda q, k, v, m: ops.attention(q, k, v, mask=m, scale=0.5), backend="eager", fullgraph=True)
    torch.testing.assert_close(run(q, k, v, mask), hand_written(q, k, v, mask, None))
    other = mask.triu(-2)
    torch.testing.assert_close(run(q, k, v, other), hand_written(q, k, v, other, None))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fill", ["boolean", *FILLS])
def test_a_device_is_read_with_one_synchronization(kind: str, fill: str) -> None:
    mask = KINDS[kind]() if fill == "boolean" else additive_mask(KINDS[kind](), FILLS[fill])
    assert known_masks._read_on_device(mask) == known_masks._read_on_cpu(mask)


def window_mask(t: int, left: int, right: int) -> Tensor:
    ahead = torch.arange(t) - torch.arange(t)[:, None]
    return (ahead <= right) & (ahead >= -left)


WINDOWS = [(0, 0), (1, 0), (3, 0), (0, 3), (2, 5), (400, 0), (700, 700)]


@pytest.mark.parametrize("t", [2, 8, 511, 513, 1025])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("fill", ["boolean", "-inf", "minimum"])
def test_a_window_is_recognized_by_every_entry(t: int, window: tuple[int, int], fill: str) -> None:
    left, right = (min(n, t - 1) for n in window)
    kept = window_mask(t, left, right)[None, None]
    mask = kept if fill == "boolean" else additive_mask(kept, FILLS[fill])
    known, on_device = known_mask(mask), known_masks._read_on_device(mask)
    assert known is not None and known == on_device
    if known.keeps_all or known.is_causal:
        assert known.window is None
        return
    assert known.window == (left, right) and known.keeps_in_each_row
    assert known_masks.known_window(mask) == (known.window, known.fill)
    for row, column in ((t - 1, 0), (0, t - 1), (t // 2, t // 2), (t // 2, max(t // 2 - left - 1, 0)), (t - 1, t - 1)):
        other = mask.clone()
        other[0, 0, row, column] = not other[0, 0, row, column] if fill == "boolean" else -1.0
        for read in (known_mask(other), known_masks._read_on_device(other)):
            assert read is not None and read.window is None or t < 8


def test_heads_with_other_windows_and_other_lengths_have_no_window() -> None:
    several = torch.stack([window_mask(8, 2, 0), window_mask(8, 3, 0)])[None]
    for mask in (
        several,
        window_mask(8, 2, 0)[:5],
        window_mask(8, 2, 0).roll(1, 0),
        torch.zeros(8, 8, dtype=torch.bool),
    ):
        for read in (known_mask(mask), known_masks._read_on_device(mask)):
            assert read is not None and read.window is None


def test_a_window_is_known_until_the_mask_is_written() -> None:
    mask = window_mask(64, 5, 0)
    assert known_masks.known_window(mask) is None  # it was not read yet
    known_mask(mask)
    assert known_masks.known_window(mask) == ((5, 0), -math.inf)
    mask[3, 3] = False
    assert known_masks.known_window(mask) is None


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("cap", [None, 3.0])
def test_kernels_learn_that_a_mask_is_a_window(cap: float | None, boolean: bool) -> None:
    q, k, v = (torch.randn(2, 3, 600, 4) for _ in range(3))
    mask = window_mask(600, 9, 0) if boolean else additive_mask(window_mask(600, 9, 0), None)
    run = ops.attention if cap is None else partial(ops.soft_capped_attention, cap=cap)
    for window in ((9, 0), None):
        with record_calls() as calls, using(providers=("torch",)):
            found = run(q, k, v, mask=mask, scale=0.5)
        assert calls[-1].kwargs.get("window") == window
        scores = q @ k.mT * 0.5 if cap is None else cap * torch.tanh(q @ k.mT * 0.5)
        kept = mask if boolean else mask == 0
        torch.testing.assert_close(found, scores.masked_fill(~kept, -math.inf).softmax(-1) @ v, rtol=1e-4, atol=1e-5)
        mask[100, 95] = False if boolean else torch.finfo(torch.float32).min
