"""All rows, in the order of the table."""

from __future__ import annotations

from collections.abc import Sequence

from tools.distributed import ways_ddp, ways_fsdp1, ways_fsdp2, ways_parallel, ways_state  # noqa: F401  (they register)
from tools.distributed.rows import WAYS, Order, Way

RANKS = tuple(sorted({way.ranks for way in WAYS}))


def rows_of(ranks: int, only: Sequence[str] = ()) -> list[tuple[Way, Order]]:
    """Return the rows for a number of ranks; with `only`, the rows whose name contains one of these."""
    rows = [(way, order) for way in WAYS if way.ranks == ranks for order in way.orders]
    return [(w, o) for w, o in rows if not only or any(part in f"{w.name}, {o}" for part in only)]
