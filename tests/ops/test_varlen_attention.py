"""autofuse.ops.varlen_attention against attention of each sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from autofuse import ops
from autofuse.ops import reference
from autofuse.ops.varlen_attention import _as_one

H, D = 4, 8
Agree = Callable[..., None]
LENGTHS = {
    "several": ([3, 5, 5, 1], [4, 6, 6, 2]),
    "equal": ([4, 4], [4, 4]),
    "some without tokens": ([0, 3, 0, 2], [2, 3, 0, 4]),
    "one without keys": ([2, 3], [0, 5]),
    "one": ([6], [6]),
}


def sequence_starts(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def operands(queries: list[int], keys: list[int], groups: int = H, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    tokens = ((sum(queries), H), (sum(keys), groups), (sum(keys), groups))
    return [torch.randn(*shape, D, dtype=dtype) for shape in tokens]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("groups", [H, 2])
def test_each_sequence_attends_to_its_own_keys(assert_agree: Agree, lengths: Any, is_causal: bool, groups: int) -> None:
    queries, keys = lengths
    starts = (sequence_starts(queries), sequence_starts(keys), max(queries), max(keys))
    run = lambda f: lambda q, k, v: f(q, k, v, *starts, is_causal=is_causal)
    given = operands(queries, keys, groups)
    assert_agree(run(ops.varlen_attention), run(reference.varlen_attention), *given, terms=16)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_code_for_compilers_gives_the_same(is_causal: bool) -> None:
    queries, keys = LENGTHS["some without tokens"]
    given, starts = operands(queries, keys), (sequence_starts(queries), sequence_starts(keys))
    told = {"scale": 0.3, "is_causal": is_causal, "dropout_p": 0.0, "training": True}
    expected = ops.varlen_attention(*given, *starts, 3, 4, scale=0.3, is_causal=is_causal)
    torch.testing.assert_close(_as_one(*given, *starts, told), expected)
    compiled = torch.compile(ops.varlen_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given, *starts, 3, 4, scale=0.3, is_causal=is_causal), expected)


def test_weights_are_dropped_in_training_only() -> None:
    queries, keys = LENGTHS["several"]
    query, key, value = operands(queries, keys)
    run = lambda **told: ops.varlen_attention(
        query, key, value, sequence_starts(queries), sequence_starts(keys), 5, 6, **told
    )
    assert torch.equal(run(dropout_p=0.5), run())
    assert not torch.equal(run(dropout_p=0.5, training=True), run())


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"query": torch.zeros(1, 4, H, D)}, "takes \\(tokens, heads, head_dim\\)"),
        ({"cu_seqlens_q": torch.tensor([0, 4])}, "cumulative lengths of shape"),
        ({"cu_seqlens_q": torch.tensor([0, 2, 3])}, "end at the number of tokens"),
        ({"cu_seqlens_k": torch.tensor([0, 5, 4])}, "never decrease"),
        ({"cu_seqlens_k": torch.tensor([1, 2, 4])}, "start at 0"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(change: dict[str, Tensor], word: str) -> None:
    query, key, value = operands([2, 2], [2, 2])
    given = {
        "query": query,
        "key": key,
        "value": value,
        "cu_seqlens_q": sequence_starts([2, 2]),
        "cu_seqlens_k": sequence_starts([2, 2]),
    }
    with pytest.raises(ValueError, match=word):
        ops.varlen_attention(**{**given, **change}, max_q=2, max_k=2)
