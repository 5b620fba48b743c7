"""The blocks into which the scores of attention are cut, so that they stay in a CPU's cache.

attention.py computes the blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

ELEMENTS = (2**18, 2**20)  # scores of a block in single and half precision: 1 to 2 MiB, with few operator calls
_FEWEST_ROWS = 32  # a matrix product of fewer rows reads the keys too often
_FEWEST_CAUSAL = 128
_STEPS = 4  # the least number of steps of a causal triangle: 5/8 of the square are then computed


class AttentionBlock(NamedTuple):
    """Some queries of some heads of some batches, and the keys before `keys`.

    `start` is the number of its first weight.
    """

    batches: slice
    heads: slice
    queries: slice
    keys: int
    start: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batches, heads, queries and keys."""
        sizes = (s.stop - s.start for s in (self.batches, self.heads, self.queries))
        return (*sizes, self.keys)


Group = tuple[AttentionBlock, ...]  # blocks of the same heads, in the order of their queries


@lru_cache(1024)
def blocks(batch: int, heads: int, queries: int, keys: int, is_causal: bool, elements: int) -> tuple[Group, ...]:
    """All scores, in groups of blocks of about `elements` scores. A causal block leaves out keys after its last query.

    A block has whole heads, or whole batches of heads, if these are small; otherwise rows of one head.
    """
    if not batch * heads * queries * keys:
        return ()
    rows = min(max(elements // keys, _FEWEST_ROWS), queries)
    if is_causal:
        rows = min(rows, max(-(-queries // _STEPS), _FEWEST_CAUSAL))
    heads_per_block = max(elements // (rows * keys), 1)
    of_batches, of_heads = (max(heads_per_block // heads, 1) if rows == queries else 1), min(heads_per_block, heads)
    groups, start = [], 0
    for batch_slice in _slices(batch, of_batches):
        for head_slice in _slices(heads, of_heads):
            group = []
            for query_slice in _slices(queries, rows):
                block = AttentionBlock(
                    batch_slice, head_slice, query_slice, min(query_slice.stop, keys) if is_causal else keys, start
                )
                start += math.prod(block.shape)
                group.append(block)
            groups.append(tuple(group))
    return tuple(groups)


def _slices(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))
