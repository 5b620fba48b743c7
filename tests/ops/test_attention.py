"""autofuse.ops.attention against its reference: shapes, masks, dtypes, transforms, and which kernel ran."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from autofuse import ops
from autofuse.kernels.compiled import attention as kernel
from autofuse.ops import attention_thresholds as thresholds
from autofuse.ops import reference
from autofuse.ops.attention import _OP as OP

B, H, T, S, D = 2, 3, 5, 7, 4
FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
Agree = Callable[..., None]


def qkv(
    *batch: int, t: int = T, s: int = S, d: int = D, dv: int = D, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    return [torch.randn(*batch, n, w).to(dtype) for n, w in ((t, d), (s, d), (s, dv))]


def named_operands(*batch: int, dv: int = D) -> dict[str, Tensor]:
    return dict(zip(("query", "key", "value"), qkv(*batch, dv=dv), strict=True))


def kernels(**arguments: Any) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ops.attention(**arguments)
    return {e.key for e in profile.key_averages()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_agrees_in_every_dtype(assert_agree: Agree, dtype: torch.dtype, is_causal: bool) -> None:
    query, key, value = qkv(B, H, dtype=dtype)
    assert_agree(ops.attention, reference.attention, query, key, value, scale=0.5, is_causal=is_causal, terms=S + D)


@pytest.mark.parametrize("batch", [(), (B,), (B, H), (2, B, H), (2, 1, B, H)])
@pytest.mark.parametrize("dv", [D, D - 1, D + 3])
def test_takes_any_number_of_leading_dimensions_and_any_width_of_value(
    assert_agree: Agree, batch: Any, dv: int
) -> None:
    assert_agree(ops.attention, reference.attention, *qkv(*batch, dv=dv), scale=0.5, terms=S + D)


MASKS = {
    "one number": (),
    "keys only": (S,),
    "queries and keys": (T, S),
    "key padding": (B, 1, 1, S),
    "query padding": (B, 1, T, 1),
    "a head": (H, T, S),
    "all": (B, H, T, S),
    "more dimensions than the scores": (2, 1, 1, T, S),
}


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["keep", "bias", "partly -inf"])
@pytest.mark.parametrize("batch", [(B, H), (2, B, H)])
def test_a_mask_of_any_shape_that_broadcasts(
    assert_agree: Agree, shape: tuple[int, ...], is_causal: bool, kind: str, batch: Any
) -> None:
    keep = torch.rand(shape) > 0.3
    keep = keep | (torch.arange(shape[-1]) == 0) if shape else torch.tensor(True)
    bias = torch.randn(shape)
    mask = {"keep": keep, "bias": bias, "partly -inf": bias.masked_fill(~keep, -math.inf)}[kind]
    query, key, value = qkv(*batch)
    run = lambda f: lambda q, k, v: f(q, k, v, mask=mask, scale=0.5, is_causal=is_causal)
    exact = lambda q, k, v: reference.attention(
        q, k, v, mask=mask if kind == "keep" else mask.double(), scale=0.5, is_causal=is_causal
    )
    assert_agree(run(ops.attention), exact, query, key, value, terms=S + D)


@pytest.mark.parametrize("shape", [(), (T, S), (H, T, S), (B, 1, 1, S)])
def test_a_mask_that_requires_a_gradient_gets_it(assert_agree: Agree, shape: tuple[int, ...]) -> None:
    query, key, value = qkv(B, H)
    assert_agree(
        ops.attention, reference.attention, query, key, value, mask=torch.randn(shape), scale=0.5, terms=S + B * H * T
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(T, S), (B, 1, 1, S), (S,)])
def test_with_a_fill_a_row_without_keys_attends_evenly_and_passes_no_gradient_to_query_and_key(
    assert_agree: Agree, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    query, key, value = qkv(B, H, dtype=dtype)
    mask = torch.rand(shape) > 0.5
    mask.view(-1, S)[-1] = False
    filled = lambda q, k, v: (q @ k.mT).masked_fill(~mask, -1e9).softmax(-1) @ v
    assert_agree(lambda q, k, v: ops.attention(q, k, v, mask=mask, fill=-1e9), filled, query, key, value, terms=S + D)


def test_without_a_fill_a_row_without_keys_gives_zero_and_no_gradient() -> None:
    query, key, value = (t.requires_grad_() for t in qkv(B, H))
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[2] = False
    result = ops.attention(query, key, value, mask=mask)
    assert not result[:, :, 2].any()
    gradient = torch.autograd.grad(result.sum(), query)[0]
    assert not gradient[:, :, 2].any() and gradient.isfinite().all()


def test_causal_rows_keep_a_key_so_that_the_fill_changes_nothing() -> None:
    query, key, value = qkv(B, H)
    plain = ops.attention(query, key, value, is_causal=True)
    assert torch.equal(plain, ops.attention(query, key, value, is_causal=True, fill=-1e9))


@pytest.mark.parametrize("t, s", [(T, S), (S, T), (1, S)])
def test_causal_is_aligned_at_the_first_query_and_key(assert_agree: Agree, t: int, s: int) -> None:
    assert_agree(ops.attention, reference.attention, *qkv(B, H, t=t, s=s), is_causal=True, terms=S + D)


def test_a_mask_that_is_proven_causal_is_replaced_only_if_it_is_square() -> None:
    triangle = torch.ones(S, S, dtype=torch.bool).tril()
    query, key, value = qkv(B, H, t=S)
    expected = ops.attention(query, key, value, is_causal=True)
    assert torch.equal(ops.attention(query, key, value, mask=triangle, mask_is_causal=True), expected)
    step = ops.attention(query[:, :, -1:], key, value, mask=triangle[-1:], mask_is_causal=True)
    assert torch.allclose(step, expected[:, :, -1:], atol=1e-6)  # one query beside all keys, as in generation


@pytest.mark.parametrize("scale", [1, 0.25, -3.0, 0.0])
def test_a_number_scales(assert_agree: Agree, scale: float) -> None:
    assert_agree(ops.attention, reference.attention, *qkv(B, H), scale=scale, terms=S + D)


@pytest.mark.parametrize("shape", [(), (1,), (H, 1, 1), (T, 1), (B, 1, T, 1), (2, 1, 1, 1, 1)])
def test_a_tensor_scales_and_gets_its_gradient(assert_agree: Agree, shape: tuple[int, ...]) -> None:
    assert_agree(ops.attention, reference.attention, *qkv(B, H), scale=torch.rand(shape), terms=B * H * T * S)


def test_a_scale_for_each_key_is_refused() -> None:
    with pytest.raises(ValueError, match="differs from key to key"):
        ops.attention(*qkv(B, H), scale=torch.rand(S))


@pytest.mark.parametrize(
    "query, key, value",
    [
        ((B, H), (B, 1), (B, 1)),
        ((B, H), (1, H), (B, H)),
        ((H,), (B, H), (B, H)),
        ((1, H), (B, 1), (H,)),
        ((), (B,), ()),
    ],
)
def test_leading_dimensions_broadcast_as_in_matmul(assert_agree: Agree, query: Any, key: Any, value: Any) -> None:
    assert_agree(ops.attention, reference.attention, *(qkv(*b)[i] for i, b in enumerate((query, key, value))), terms=64)


GROUPS = {
    "one head of keys": ((B, 4), (B, 1)),
    "two": ((B, 4), (B, 2)),
    "without batches": ((4,), (2,)),
    "more dimensions": ((3, B, 4), (3, B, 2)),
    "batches that broadcast": ((B, 4), (1, 2)),
    "spelled as a dimension": ((B, 2, 3), (B, 2, 1)),
}


@pytest.mark.parametrize(("query", "key"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("mask", [None, (T, S), (4, T, S)])
def test_heads_that_share_keys_agree_without_repeating_them(
    assert_agree: Agree, query: tuple[int, ...], key: tuple[int, ...], mask: tuple[int, ...] | None
) -> None:
    q, k, v = qkv(*query)[0], *qkv(*key)[1:]
    kept = None if mask is None or query[-1] != 4 else torch.rand(mask) > 0.3
    run = lambda f: lambda q, k, v: f(q, k, v, mask=kept, scale=0.5)
    assert_agree(run(ops.attention), run(reference.attention), q, k, v, terms=64)
    seen: list[torch.Size] = []

    def pack(x: Tensor) -> Tensor:
        seen.append(x.shape)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        ops.attention(q, k.requires_grad_(), v, mask=kept, scale=0.5)
    assert max(shape.numel() for shape in seen) <= max(q.numel(), math.prod((3, *key, S, D)))


@pytest.mark.parametrize("batch", [(), (B,), (B, H)])
@pytest.mark.parametrize(("keys", "values"), [(S, S - 2), (S, S + 2), (1, S), (80, 90), (90, 80)])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_another_number_of_values_than_of_keys_is_refused(
    batch: Any, keys: int, values: int, has_mask: bool, needs_gradient: bool
) -> None:
    query, key, value = (torch.randn(*batch, n, 8).requires_grad_(needs_gradient) for n in (T, keys, values))
    mask = torch.ones(T, keys, dtype=torch.bool) if has_mask else None
    with pytest.raises(RuntimeError):  # torch's flash kernel for CPUs would read past the end of the keys
        ops.attention(query, key, value, mask=mask)


def test_heads_that_are_no_multiple_of_the_keys_heads_are_refused() -> None:
    with pytest.raises(RuntimeError):
        ops.attention(qkv(B, 4)[0], *qkv(B, 3)[1:])


@pytest.mark.parametrize("empty", ["batch", "queries", "keys", "width", "value"])
@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32, torch.float64])
def test_empty_operands_give_what_matmul_and_softmax_give(assert_agree: Agree, empty: str, mask: Any) -> None:
    b, t, s, d, dv = (
        0 if empty == n else w for n, w in (("batch", B), ("queries", T), ("keys", S), ("width", D), ("value", D))
    )
    query, key, value = qkv(b, H, t=t, s=s, d=d, dv=dv)
    given = None if mask is None else torch.ones(t, s, dtype=mask)
    run = lambda f: lambda q, k, v: f(q, k, v, mask=given)
    assert_agree(run(ops.attention), run(reference.attention), query, key, value, terms=S + D)


def test_a_mask_of_a_wider_dtype_keeps_its_meaning_in_a_narrower_one() -> None:
    query, key, value = qkv(B, H, dtype=torch.bfloat16)
    alibi = 16.0 * torch.arange(S)[None] + 4096.0 + torch.zeros(T, 1)  # bfloat16 has steps of 32 there
    fill = torch.where(torch.rand(T, S) > 0.5, 0.0, torch.finfo(torch.float32).min)
    fill[0] = torch.finfo(torch.float32).min  # attends evenly; -inf, as bfloat16 has it, would give 0
    for mask in (alibi, fill, torch.full((T, S), -10000)):
        expected = reference.attention(query.double(), key.double(), value.double(), mask=mask.double())
        result = ops.attention(query, key, value, mask=mask)
        assert result.dtype is torch.bfloat16
        assert (result.double() - expected).abs().max() < 8 * torch.finfo(torch.bfloat16).eps


def test_value_sets_the_dtype_of_the_result() -> None:
    query, key, value = qkv(B, H)
    assert ops.attention(query, key, value.bfloat16()).dtype is torch.bfloat16
    assert ops.attention(query.bfloat16(), key, value).dtype is torch.float32


def test_autocast_sets_the_dtypes_as_for_matmul() -> None:
    query, key, value = qkv(B, H)
    mask = torch.zeros(T, S).masked_fill(torch.rand(T, S) > 0.5, torch.finfo(torch.float32).min)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.attention(query, key.bfloat16(), value, mask=mask).dtype is (query @ key.mT).dtype is torch.bfloat16
        assert ops.attention(query.double(), key.double(), value.double()).dtype is torch.float64


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "four dimensions": lambda: named_operands(B, H),
    "three dimensions": lambda: named_operands(B),
    "three dimensions and a mask": lambda: {**named_operands(B), "mask": torch.rand(B, T, S) > 0.2},
    "five dimensions and a mask": lambda: {**named_operands(2, B, H), "mask": torch.rand(B, 1, T, S) > 0.2},
    "a mask a head": lambda: {**named_operands(B, H), "mask": torch.randn(H, T, S)},
    "a mask for keys": lambda: {**named_operands(B, H), "mask": torch.randn(S)},
    "a mask of another dtype": lambda: {**named_operands(B, H), "mask": torch.randn(T, S).double()},
    "a fill": lambda: {**named_operands(B, H), "mask": torch.rand(B, 1, 1, S) > 0.2, "fill": -1e9},
    "a wide value": lambda: named_operands(B, H, dv=9),
    "a narrow value": lambda: named_operands(B, H, dv=1),
    "keys stored transposed": lambda: {**named_operands(B, H), "key": torch.randn(B, H, D, S).mT},
    "causal and a mask": lambda: {**named_operands(B, H), "mask": torch.rand(B, 1, 1, S) > 0.2, "is_causal": True},
    "dropout in evaluation": lambda: {**named_operands(B, H), "dropout_p": 0.5},
}


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS)
def test_runs_the_fused_kernel(arguments: Callable[[], dict[str, Any]]) -> None:
    given = arguments()
    for name in ("query", "key", "value"):
        given[name].requires_grad_()
    assert FUSED in kernels(**given)


def test_drops_out_in_training_only() -> None:
    query, key, value = qkv(B, H, t=64, s=64)
    value = torch.ones_like(value)
    result = ops.attention(query * 0, key, value, dropout_p=0.5, training=True)
    assert result.std() > 0 and 0.9 < result.mean() < 1.1  # the mean of B * H * 64 rows of 64 weights: deviation 0.006
    assert torch.equal(ops.attention(query * 0, key, value, dropout_p=0.5), value)


@pytest.fixture
def plain_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the plain functions, because compiling takes seconds. test_attention_blocks.py tests compiled ones."""
    monkeypatch.setattr(kernel, "drop", kernel.drop.function)
    monkeypatch.setattr(kernel, "drop_with_gradient", kernel.drop_with_gradient.function)
    monkeypatch.setattr(thresholds, "DROPPED", 2**16)
    monkeypatch.setattr(thresholds, "LEARNED", 2**16)


LARGE = {
    "dropout": lambda: {**large(torch.float32), "dropout_p": 0.2, "training": True},
    "causal and dropout": lambda: {**large(torch.float32), "dropout_p": 0.2, "training": True, "is_causal": True},
    "a bias that learns": lambda: {**large(torch.float32), "mask": torch.randn(H, 128, 128, requires_grad=True)},
    "shared keys and dropout": lambda: {
        **large(torch.float32), "key": torch.randn(B, 1, 128, D), "value": torch.randn(B, 1, 128, D), "dropout_p": 0.2,
        "training": True,
    },
}  # fmt: skip


def large(dtype: torch.dtype) -> dict[str, Tensor]:
    return dict(zip(("query", "key", "value"), qkv(B, H, t=128, s=128, dtype=dtype), strict=True))


@pytest.mark.parametrize("arguments", LARGE.values(), ids=LARGE)
def test_large_calls_that_the_fused_kernel_refuses_run_in_blocks(
    plain_functions: None, arguments: Callable[[], Any]
) -> None:
    given, before = arguments(), OP.counts.setdefault("blocks", 0)
    ops.attention(**given)
    assert OP.counts["blocks"] == before + 1
    small = {name: x[..., :4, :] if isinstance(x, Tensor) and name != "mask" else x for name, x in given.items()}
    ops.attention(**{**small, "mask": None})
    assert OP.counts["blocks"] == before + 1


def test_a_large_bias_gets_the_same_gradient_in_blocks_as_in_the_formula(
    plain_functions: None, assert_agree: Agree
) -> None:
    given = large(torch.float32)
    bias = torch.randn(H, 128, 128)
    assert_agree(ops.attention, reference.attention, *given.values(), mask=bias, scale=0.5, terms=B * H * 128)


def test_a_checkpoint_drops_the_same_weights_again(plain_functions: None) -> None:
    query, key, value = (x.requires_grad_() for x in large(torch.float32).values())
    run = lambda q, k, v: ops.attention(q, k, v, dropout_p=0.3, training=True).square().sum()
    results = []
    for call in (run, lambda *given: checkpoint(run, *given, use_reentrant=False)):
        torch.manual_seed(3)
        results.append(torch.autograd.grad(call(query, key, value), (query, key, value)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_compiles_into_one_graph_for_all_lengths() -> None:
    call = lambda q, k, v, m: ops.attention(q, k, v, mask=m, scale=q.shape[-1] ** -0.5, fill=-1e9)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for t in (T, 11):
        for batch in ((B, H), (B,)):
            query, key, value = (x.requires_grad_() for x in qkv(*batch, t=t, dv=D + 1))
            mask = torch.rand(t, S) > 0.2
            assert torch.allclose(compiled(query, key, value, mask), call(query, key, value, mask), atol=1e-6)


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS)
def test_compiles_and_runs_on_meta_and_under_autocast(arguments: Callable[[], dict[str, Any]]) -> None:
    torch.compiler.reset()
    given = arguments()
    compiled = torch.compile(ops.attention, fullgraph=True, backend="eager")
    expected = ops.attention(**given)
    assert torch.allclose(compiled(**given), expected, atol=1e-6)
    with torch.autocast("cpu"):
        assert compiled(**given).dtype is torch.bfloat16
    meta = {k: a.to("meta") if isinstance(a, Tensor) else a for k, a in given.items()}
    assert ops.attention(**meta).shape == expected.shape


def test_works_under_vmap_functional_call_and_checkpointing() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(D, 3 * D)

        def forward(self, x: Tensor) -> Tensor:
            return ops.attention(*self.project(x).chunk(3, -1), scale=0.5, is_causal=True)

    module, x = Attention(), torch.randn(B, T, D, requires_grad=True)
    expected = module(x)
    parameters = dict(module.named_parameters())
    assert torch.allclose(torch.func.functional_call(module, parameters, (x,)), expected)
    assert torch.allclose(torch.func.vmap(module)(x), expected, atol=1e-6)
    again = checkpoint(module, x, use_reentrant=False)
    for gradient, other in zip(
        torch.autograd.grad(again.sum(), [x, *parameters.values()]),
        torch.autograd.grad(expected.sum(), [x, *parameters.values()]),
        strict=True,
    ):
        assert torch.allclose(gradient, other, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "fill"), [(torch.float32, -1e9), (torch.float32, "minimum"), (torch.float64, "minimum")]
)
def test_a_row_that_an_added_number_drops_completely_has_the_gradients_of_the_formula(
    dtype: torch.dtype, fill: float | str
) -> None:
    amount = torch.finfo(dtype).min if fill == "minimum" else fill
    mask = torch.zeros(B, 1, T, S, dtype=dtype)
    mask[0, :, 1] = amount
    given = [t.to(dtype).requires_grad_() for t in qkv(B, H)]
    same = [t.detach().clone().requires_grad_() for t in given]
    upstream = torch.randn(B, H, T, given[2].shape[-1], dtype=dtype)
    ops.attention(*given, mask=mask, scale=0.5).backward(upstream)
    reference.attention(*same, mask=mask, scale=0.5).backward(upstream)
    for ours, right in zip(given, same, strict=True):
        assert ours.grad is not None and right.grad is not None
        torch.testing.assert_close(ours.grad, right.grad, rtol=0, atol=float(1e3 * torch.finfo(dtype).eps))


def test_a_mask_that_requires_a_gradient_works_under_vmap() -> None:
    query, key, value = torch.randn(3, 2, 2, 5, 4).unbind(0)
    masks = torch.randn(3, 2, 5, 5, requires_grad=True)
    found = torch.func.vmap(lambda mask: ops.attention(query, key, value, mask=mask))(masks.unsqueeze(1))
    expected = torch.stack([ops.attention(query, key, value, mask=mask[None]) for mask in masks])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("batch", [(2,), (2, 3), (2, 3, 4)])
def test_a_result_without_gradients_is_not_a_view_and_keeps_its_tangent(batch: tuple[int, ...]) -> None:
    query, key, value = (t.double() for t in qkv(*batch))
    with torch.no_grad():
        found = ops.attention(query, key, value)
        assert not found._is_view()
        found.detach_()
        _, along = torch.func.jvp(lambda q: ops.attention(q, key, value), (query,), (query,))
    _, expected = torch.func.jvp(lambda q: torch.softmax(q @ key.mT, -1) @ value, (query,), (query,))
    torch.testing.assert_close(along, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_a_negative_scale_reaches_no_kernel(assert_agree: Agree, masked: bool) -> None:
    query, key, value = qkv(B, H)
    mask = torch.rand(T, S) > 0.3 if masked else None
    assert_agree(ops.attention, reference.attention, query, key, value, mask=mask, scale=-0.5, terms=S + D)
    scales = list[float]()

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.scaled_dot_product_attention:
                scales.append(kwargs["scale"])
            return func(*args, **kwargs or {})

    with Watch():
        ops.attention(query, key, value, mask=mask, scale=-0.5)
    assert scales in ([0.5], []) and (masked or scales)
