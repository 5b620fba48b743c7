"""A lazy mask behaves as the tensor that it stands for; attention asks what it is and does not make it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from autofuse.ops.attention import attention
from autofuse.ops.lazy_masks import LazyMask, form_of, plain_mask, with_plain_masks

LENGTH = 12


def dense(dtype: torch.dtype = torch.float64, causal: bool = True) -> Tensor:
    """(2, 1, T, T), as transformers makes it."""
    kept = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    kept = (kept.tril() if causal else kept).expand(2, 1, LENGTH, LENGTH)
    return kept.clone() if dtype is torch.bool else torch.where(kept, torch.zeros((), dtype=dtype), -1e30)


def lazy(mask: Tensor) -> LazyMask:
    form = form_of(mask)
    assert form is not None
    return LazyMask.of(form)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool])
def test_the_form_of_a_mask_makes_the_same_mask(dtype: torch.dtype, causal: bool) -> None:
    for mask in (dense(dtype, causal), dense(dtype, causal)[:1, 0].expand(3, LENGTH, LENGTH)):
        form = form_of(mask)
        assert form is not None and form.is_causal is causal
        made = form.make()
        assert torch.equal(made, mask) and made.stride() == mask.stride() and made.dtype is dtype


def _window(mask: Tensor) -> Tensor:
    return mask + torch.full_like(mask, -1e30).tril(-4)


OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "a window": _window,
    "padding": lambda m: m.index_fill(-1, torch.tensor([0]), -1e30),
    "one row of a batch differs": lambda m: torch.cat([m[:1], _window(m[1:])]),
    "a fill of two kinds": lambda m: m.masked_fill(torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(2), -1e20),
    "raised": lambda m: -m,
    "not square": lambda m: m[..., :-1, :],
    "shifted": lambda m: m.roll(1, -2),
    "integers": lambda m: m.bool().long(),
    "with a gradient": lambda m: m.requires_grad_(),
    "nan": lambda m: m.masked_fill(m < 0, float("nan")),
    "nothing": lambda m: m[:0],
    "no tensor": lambda m: None,
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_mask_of_another_kind_has_no_form(change: Callable[[Tensor], Any]) -> None:
    assert form_of(change(dense())) is None


def test_attention_computes_the_same_without_making_the_mask() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, LENGTH, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for mask in (dense(), dense(torch.bool), dense(causal=False)):
        given = lazy(mask)
        results = []
        for each in (mask, given, given[:, :, :, :LENGTH]):
            made = attention(q, k, v, mask=each, scale=0.3, fill=None)
            results.append((made, *torch.autograd.grad(made.square().sum(), (q, k, v))))
        assert not given.is_made
        for found in results[1:]:
            torch.testing.assert_close(found, results[0], rtol=1e-12, atol=1e-12)


def test_attention_with_more_keys_than_queries_reads_it() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, LENGTH - 2, 8, dtype=torch.float64), torch.randn(2, 1, LENGTH, 8, dtype=torch.float64)
    mask = dense()
    wanted = attention(q, k, k, mask=mask[:, :, 2:])
    torch.testing.assert_close(attention(q, k, k, mask=lazy(mask)[:, :, 2:]), wanted, rtol=1e-12, atol=1e-12)


def _written(x: Tensor, write: Callable[[Tensor], Any]) -> Tensor:
    write(x)
    return x + 0


READS: dict[str, Callable[[Tensor], Any]] = {
    "+": lambda x: x + 1,
    "numpy": lambda x: x.numpy().sum(),
    "tolist": lambda x: x.tolist(),
    "repr": repr,
    "copy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "one entry": lambda x: x[0, 0, 0, 1].item(),
    "rows": lambda x: [row.clone() for row in x],
    "a part": lambda x: x[:, :, 3:, :5] * 2,
    "where": lambda x: torch.where(x < 0, 1, 2),
    "cat": lambda x: torch.cat([x, x]),
    "metadata": lambda x: (x.shape, x.stride(), x.dtype, x.device, x.is_contiguous(), x.requires_grad, x.ndim),
    "written": lambda x: _written(x, lambda m: m.mul_(0.5)),
    "written through a view of all": lambda x: _written(x, lambda m: m[:, :, :, :LENGTH].fill_(3)),
    "written through a part": lambda x: _written(x, lambda m: m[0, 0, 2].fill_(3)),
    "written through detach": lambda x: _written(x, lambda m: m.detach().zero_()),
    "written through numpy": lambda x: _written(x, lambda m: m.numpy().fill(2)),
    "written by indices": lambda x: _written(x, lambda m: m.__setitem__((0, 0, 1), 5.0)),
    "another .data": lambda x: _written(x, lambda m: setattr(m, "data", torch.ones(2, 1, LENGTH, LENGTH).double())),
    "out=": lambda x: _written(x, lambda m: torch.add(m, 1, out=m)),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_gives_the_numbers_of_the_mask(read: Callable[[Tensor], Any]) -> None:
    mask = dense()
    wanted, found = read(mask.clone()), read(lazy(mask))
    if isinstance(wanted, Tensor):
        assert type(found) in (Tensor, LazyMask) and torch.equal(plain_mask(found), wanted)
    elif isinstance(wanted, list) and isinstance(wanted[0], Tensor):
        assert all(map(torch.equal, found, wanted))
    else:
        assert found == wanted


def test_after_a_write_attention_uses_what_was_written() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 1, LENGTH, 8, dtype=torch.float64)
    mask = dense()
    given = lazy(mask)
    for each in (mask, given):
        each[..., :3] = -2.0
    torch.testing.assert_close(attention(q, q, q, mask=given), attention(q, q, q, mask=mask), rtol=1e-12, atol=1e-12)


def test_a_mask_that_needs_a_gradient_gets_it() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 1, LENGTH, 8, dtype=torch.float64)
    masks = [dense().requires_grad_(), lazy(dense()).requires_grad_()]
    for mask in masks:
        attention(q, q, q, mask=mask).square().sum().backward()
    torch.testing.assert_close(plain_mask(masks[1].grad), masks[0].grad, rtol=1e-12, atol=1e-12)
    assert masks[0].grad is not None and masks[0].grad.abs().max() > 0


def test_the_arguments_of_a_call_get_the_same_plain_mask() -> None:
    mask, x = lazy(dense()), torch.ones(1)
    args, kwargs = with_plain_masks((x, mask), {"mask": mask, "x": x})
    assert args[0] is x and kwargs["x"] is x
    assert type(args[1]) is Tensor and args[1] is kwargs["mask"]


def test_a_change_of_shape_in_place_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="changes the shape of a lazy mask in place"):
        lazy(dense()).squeeze_(1)
