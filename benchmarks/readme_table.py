"""The README's table of gains, from the results of benchmarks.peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.page import counts_own_time, is_busy, ratio_text
from benchmarks.peers.ways import EAGER, OURS

_COMPILED = "torch.compile"


def gains_table(peers: Mapping[str, Any]) -> str:
    """A sentence with the setting, the table, and where the data is."""
    about = peers["environment"]
    rows = [_row(name, found) for name, found in peers["models"].items() if OURS in found["timed"].get("seconds", {})]
    return (
        "Whole training steps with `AdamW(fused=True)`, float32, on one thread of "
        f"{about['processor']} with torch {about['torch'].partition('+')[0]}, in interleaved rounds with a 95 % "
        f"interval{_conditions(peers)}:\n\n"
        "| model | eager | autofuse | against eager | `torch.compile` against eager | peak memory |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        f"{''.join(rows)}\n"
        "[All ways, with what each fused, look-alikes, and start-up](docs/peers.md) · "
        "[data](benchmarks/results/peers.json)\n"
    )


def _conditions(peers: Mapping[str, Any]) -> str:
    """A sentence on the other load of the machine, and on what the clock counts."""
    about, loads = peers["environment"], peers["load"]
    if not is_busy(about, loads):
        return f" (load {min(loads):.1f} to {max(loads):.1f}, this benchmark included)"
    clock = "; the clock counts only the time for which the thread had a core" if counts_own_time(peers) else ""
    return f", while other programs kept the cores busy (load {min(loads):.0f} to {max(loads):.0f}{clock})"


def _row(name: str, found: Mapping[str, Any]) -> str:
    started, timed = found["started"], found["timed"]
    before, after = (timed["seconds"][way] * 1e3 for way in (EAGER, OURS))
    compiled = timed["against_eager"].get(_COMPILED)
    peaks = " to ".join(f"{started[way]['peak_bytes'] / 2**20:.0f}" for way in (EAGER, OURS))
    return (
        f"| {name} | {before:.0f} ms | {after:.0f} ms | {ratio_text(timed['against_eager'][OURS])} | "
        f"{'' if compiled is None else ratio_text(compiled)} | {peaks} MiB |\n"
    )
