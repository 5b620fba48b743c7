"""How the scores of attention are cut into blocks that stay in a CPU's cache.

Knows sizes only; what is done with a block is attention.py's matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

ELEMENTS = (2**18, 2**20)  # scores of a block, single and half precision: 1 to 2 MiB, and few calls of an operator
_FEWEST_ROWS = 32  # a matrix product of fewer rows reads the keys too often
_FEWEST_CAUSAL = 128
_STEPS = 4  # into which a causal triangle is cut at least: 5/8 of the square are computed


class AttentionBlock(NamedTuple):
    """Some queries of some heads of some batches, and the keys before `keys`; `start` numbers its first weight."""

    batches: slice
    heads: slice
    queries: slice
    keys: int
    start: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        sizes = (s.stop - s.start for s in (self.batches, self.heads, self.queries))
        return (*sizes, self.keys)


Group = tuple[AttentionBlock, ...]  # blocks of the same heads, one after another in their queries


@lru_cache(1024)
def blocks(batch: int, heads: int, queries: int, keys: int, is_causal: bool, elements: int) -> tuple[Group, ...]:
    """All scores, in groups of blocks of at most about `elements`; a causal block leaves out keys after its last query.

    Whole heads, or whole batches of heads, where these are small; else rows of one head.
    """
    if not batch * heads * queries * keys:
        return ()
    rows = min(max(elements // keys, _FEWEST_ROWS), queries)
    if is_causal:
        rows = min(rows, max(-(-queries // _STEPS), _FEWEST_CAUSAL))
    several = max(elements // (rows * keys), 1)
    of_batches, of_heads = (max(several // heads, 1) if rows == queries else 1), min(several, heads)
    groups, start = [], 0
    for some in _slices(batch, of_batches):
        for few in _slices(heads, of_heads):
            group = []
            for part in _slices(queries, rows):
                block = AttentionBlock(some, few, part, min(part.stop, keys) if is_causal else keys, start)
                start += math.prod(block.shape)
                group.append(block)
            groups.append(tuple(group))
    return tuple(groups)


def _slices(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))
