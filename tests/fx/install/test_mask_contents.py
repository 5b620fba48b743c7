"""Proofs of the contents of mask buffers."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.install.mask_contents import _forms, buffer_form, buffer_number, holds_form, holds_number

ONES = torch.ones(6, 6)


@pytest.mark.parametrize(
    ("mask", "form"),
    [
        (ONES.tril(), "lower"),
        (ONES.bool().tril().view(1, 1, 6, 6), "lower"),
        (ONES.triu(1), "upper"),
        (ONES.bool().triu(1), "upper"),
        (torch.full((6, 6), float("-inf")).triu(1), "bias"),
        (torch.full((6, 6), -1e9).triu(1), "bias"),
        (ONES.triu(), None),
        (ONES.tril(1), None),
        (ONES.tril() * 2, None),
        (ONES.triu(1) * -0.5, None),
        (ONES[:4].tril(), None),
        (ONES.tril().expand(2, 6, 6), None),
        (torch.ones(1, 1), None),
    ],
)
def test_a_form_is_proved_exactly(mask: Tensor, form: str | None) -> None:
    assert buffer_form(mask) == form


def test_a_proof_is_made_again_after_a_write() -> None:
    mask = ONES.tril()
    assert buffer_form(mask) == buffer_form(copy.deepcopy(mask)) == "lower"
    mask[0, 5] = 1
    assert buffer_form(mask) is None


@pytest.mark.parametrize("held", [None, torch.ones(6), ONES.tril().to("meta"), nn.Parameter(ONES.tril())])
def test_nothing_is_proved_without_a_square_buffer_with_numbers(held: Tensor | None) -> None:
    assert buffer_form(held) is None
    assert held is None or held.is_meta or not holds_form(held, "lower")


def test_the_smallest_square_and_one_of_more_dimensions_are_read() -> None:
    assert buffer_form(torch.ones(2, 2).tril()) == "lower"
    assert buffer_form(torch.ones(3, 4).tril()) is None


@pytest.mark.parametrize(
    ("fill", "dtype", "form"),
    [
        (-1e8, torch.float32, "bias"),
        (-1e9, torch.float64, None),
        (-1e17, torch.float64, "bias"),
        (-1e4, torch.float32, None),
        (-6e4, torch.float16, "bias"),
        (-1e4, torch.float16, None),
        (-1e9, torch.bfloat16, "bias"),
        (1e9, torch.float32, None),
        (-(10**9), torch.int64, None),
    ],
)
def test_only_a_fill_that_makes_scores_vanish_counts(fill: float, dtype: torch.dtype, form: str | None) -> None:
    assert buffer_form(torch.full((4, 4), fill, dtype=dtype).triu(1)) == form


WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda x: x.fill_(1),
    "an entry": lambda x: x.__setitem__((0, 1), 1),
    "a row of it": lambda x: x[0].fill_(1),
    ".data.copy_": lambda x: x.data.copy_(torch.ones_like(x)),
    ".data[...]": lambda x: x.data.__setitem__(..., 1),
    "numpy": lambda x: x.numpy().fill(1),
    "an array": lambda x: np.asarray(x).fill(1),
    "detached numpy": lambda x: x.detach().numpy().fill(1),
    "a flat view's numpy": lambda x: x.data.view(-1).numpy().__setitem__(1, 1),
    "the storage": lambda x: x.untyped_storage().fill_(255),
    "other data": lambda x: setattr(x, "data", torch.ones_like(x)),
    "turned data": lambda x: setattr(x, "data", x.data.t()),
    "turned in place": lambda x: x.t_(),
    "one row of it": lambda x: setattr(x, "data", x.data[:1]),
    "a corner of it": lambda x: setattr(x, "data", x.data[:3, :3]),
    "one row of it in place": lambda x: x.as_strided_((1, 6), (6, 1)),
    "DLPack": lambda x: torch.from_dlpack(x.data).fill_(1),
    "foreach": lambda x: torch._foreach_copy_([x.data], [torch.ones_like(x)]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_a_write_is_seen_however_it_is_made(write: Callable[[Tensor], object], dtype: torch.dtype) -> None:
    mask = torch.ones(6, 6).tril().to(dtype)
    buffer_form(mask)
    asked = f"lower of {dtype} (6, 6)"
    assert holds_form(mask, asked) and holds_form(mask, asked)
    write(mask)
    assert not holds_form(mask, asked)


def test_a_write_through_a_view_that_was_there_before_is_seen() -> None:
    mask = torch.ones(6, 6).tril()
    for other in (mask.view(-1), mask.detach().view(-1)):
        assert holds_form(mask, "lower")
        other[1] = 1
        assert not holds_form(mask, "lower")
        other[1] = 0


HOLDERS: dict[str, Callable[[Tensor], np.ndarray]] = {
    "numpy": lambda x: x.numpy(),
    "an array": np.asarray,
    "a view's numpy": lambda x: x.view(-1)[1:].numpy(),
    ".data's numpy": lambda x: x.data.numpy(),
    "DLPack": np.from_dlpack,
    "a view's DLPack": lambda x: np.from_dlpack(x.view(-1)[1:]),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("when", ["before the proof", "after it"])
@pytest.mark.parametrize("viewed", [False, True])
def test_an_array_still_shares_the_memory(hold: Callable[[Tensor], np.ndarray], when: str, viewed: bool) -> None:
    mask = torch.ones(6, 6).tril().view(1, 1, 6, 6) if viewed else torch.ones(6, 6).tril()
    proved_first = when == "after it" and holds_form(mask, "lower")
    array = hold(mask)
    assert proved_first == (when == "after it") and holds_form(mask, "lower")
    mask.fill_(3)
    assert (array == 3).all() and not holds_form(mask, "lower")
    mask.copy_(torch.ones(6, 6).tril())
    assert array.ravel()[-1] == 1 and holds_form(mask, "lower")
    array.fill(1)
    assert bool((mask == 1).sum() > 30) and not holds_form(mask, "lower")


@pytest.mark.parametrize("viewed", [False, True])
def test_an_array_of_the_tensor_that_the_buffer_views(viewed: bool) -> None:
    base = torch.ones(6, 6).tril()
    mask, array = base.view(1, 1, 6, 6), np.from_dlpack(base) if viewed else base.numpy()
    del base
    assert holds_form(mask, "lower")
    array[0, 1] = 1
    assert not holds_form(mask, "lower") and mask[0, 0, 0, 1] == 1


def test_an_address_outlives_writes_as_long_as_the_buffer_lives() -> None:
    mask = torch.ones(300, 300).tril()
    for write in (1, 2, 3):
        address = torch._C._data_address(mask)
        held = (ctypes.c_float * mask.numel()).from_address(address)
        assert holds_form(mask, "lower")
        mask.fill_(write)
        assert not holds_form(mask, "lower")
        others = [torch.full((300, 300), 9.0) for _ in range(20)]  # would reuse freed memory
        assert set(held) == {0.0, 1.0} and len(others) == 20
        mask.copy_(torch.ones(300, 300).tril())


def test_a_buffer_that_is_written_again_and_again_keeps_no_more_memory_and_is_compared() -> None:
    mask = torch.ones(6, 6).tril()
    for _ in range(20):
        assert holds_form(mask, "lower")
        mask.fill_(1)
        assert not holds_form(mask, "lower")
        mask.tril_()
    assert len(_forms[id(mask)].earlier) == 4 and holds_form(mask, "lower")
    mask.data[0, 1] = 1
    assert not holds_form(mask, "lower")


def test_memory_that_torch_does_not_own_is_compared() -> None:
    held = np.tril(np.ones((6, 6), dtype=np.float32))
    mask = torch.from_numpy(held)
    assert holds_form(mask, "lower")
    held[0, 1] = 1
    assert not holds_form(mask, "lower")


def test_a_buffer_that_cannot_be_watched_or_compared_gets_no_proof() -> None:
    assert buffer_form(torch.from_numpy(np.tril(np.ones((1100, 1100), dtype=bool)))) is None
    assert buffer_form(torch.ones(1100, 1100).tril()) == "lower"


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "shared with processes": lambda x: x.share_memory_(),
    "copied deeply": copy.deepcopy,
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "resized": lambda x: x.resize_(8, 8).resize_(6, 6),
    "of another type and back": lambda x: x.half().float(),
    "in the state of a module": lambda x: buffers(x).state_dict()["mask"],
    "swapped": lambda x: x.set_(x.clone()),
}


def buffers(x: Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("mask", x)
    return module


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_proved_buffer_is_moved_as_any_other(move: Callable[[Tensor], Tensor]) -> None:
    mask = torch.ones(6, 6).tril()
    assert holds_form(mask, "lower")
    moved = move(mask)
    assert torch.equal(moved, ONES.tril()) and holds_form(moved, "lower")
    moved.data[0, 1] = 1
    assert not holds_form(moved, "lower")


def test_a_buffer_made_in_inference_mode() -> None:
    with torch.inference_mode():
        mask, other = torch.ones(6, 6).tril(), torch.ones(6, 6)
        assert holds_form(mask, "lower") and not holds_form(other, "lower")
        mask[0, 1] = 1
        assert not holds_form(mask, "lower")


READS: dict[str, Callable[[Tensor], object]] = {
    "compared": lambda x: x == 0,
    "a corner": lambda x: x[:3, :3].bool(),
    "saved": lambda x: torch.save(x, io.BytesIO()),
    "copied": copy.deepcopy,
    "asked for its place": lambda x: x.data_ptr(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_keeps_a_proof_or_makes_it_again(read: Callable[[Tensor], object]) -> None:
    mask = torch.ones(6, 6).tril()
    assert buffer_form(mask) == "lower"
    read(mask)
    assert holds_form(mask, "lower")


def test_a_guard_distinguishes_its_form_from_others_and_from_later_writes() -> None:
    mask = ONES.triu(1)
    assert holds_form(mask, "upper") and not holds_form(mask, "lower") and not holds_form(mask, "bias")
    mask.mul_(-1e9)
    assert holds_form(mask, "bias") and not holds_form(mask, "upper")
    mask.data = ONES.tril()
    assert holds_form(mask, "lower") and not holds_form(mask, "bias")
    mask.add_(1)
    assert not any(holds_form(mask, form) for form in ("lower", "upper", "bias"))


@pytest.mark.parametrize(
    ("held", "number"),
    [
        (torch.tensor(-1e4), -1e4),
        (torch.tensor(-1e3), -1e3),
        (torch.tensor(float("-inf")), float("-inf")),
        (torch.tensor(-999.0), None),
        (torch.tensor(-10000), None),
        (torch.tensor([-1e4]), None),
        (torch.tensor(-1e4, device="meta"), None),
        (nn.Parameter(torch.tensor(-1e4)), None),
        (None, None),
    ],
)
def test_a_fill_in_a_buffer_of_one_element_is_read(held: Tensor | None, number: float | None) -> None:
    assert buffer_number(held) == number


def test_a_guard_reads_the_number_again_after_a_write() -> None:
    fill = torch.tensor(-1e4)
    assert holds_number(fill, -1e4) and not holds_number(fill, -1e9)
    fill.mul_(10)
    assert not holds_number(fill, -1e4) and holds_number(fill, -1e5)
    fill.data.fill_(-3e4)
    assert not holds_number(fill, -1e5) and holds_number(fill, -3e4)
    fill.data = torch.tensor(-2e4)
    assert not holds_number(fill, -1e5) and holds_number(fill, -2e4)
    fill.fill_(0.0)
    assert not holds_number(fill, -2e4) and not holds_number(None, -1e4)


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keep", torch.tril(torch.ones(8, 8, dtype=torch.bool)))

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ x.transpose(-2, -1)).masked_fill(~self.keep, float("-inf"))
        return torch.softmax(scores, dim=-1) @ x


def test_the_buffer_of_an_optimized_model_is_watched_and_not_compared_at_each_call() -> None:
    x = torch.randn(1, 2, 8, 4)
    model = autofuse.optimize(nn.Sequential(Causal(), Causal()), (x,), tune=False)
    model(x)
    assert all(_forms[id(keep)].shadow is not None for keep in model.buffers())
