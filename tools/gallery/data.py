"""Generates data for programs that have none: text and numbers, the same at every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = 400
_ROWS = 1200


def words(path: Path) -> None:
    """Write token ids below 65 as uint16, in repeated words, so that a model can learn something."""
    draw = random.Random(0)
    known = [[draw.randrange(65) for _ in range(draw.randint(2, 7))] for _ in range(40)]
    tokens = [token for _ in range(4000) for token in (*draw.choice(known), 1)]
    path.write_bytes(b"".join(token.to_bytes(2, "little") for token in tokens))


def sentences(path: Path) -> None:
    """Write pairs of short sentences, separated by a tab."""
    draw = random.Random(0)
    known = _vocabulary()
    lines = ("\t".join(" ".join(draw.choices(known, k=6)) for _ in range(2)) for _ in range(2000))
    path.write_text("\n".join(lines) + "\n")


def series(path: Path) -> None:
    """Write hourly values of seven columns after a date: waves and noise. The last column, OT, is the target."""
    # A recurrence makes the waves, so that no math module is needed.
    draw = random.Random(0)
    states = [(draw.uniform(-1, 1), draw.uniform(-0.1, 0.1)) for _ in range(7)]
    lines = ["date," + ",".join([*(f"V{i}" for i in range(6)), "OT"])]
    for hour in range(_ROWS):
        states = [(x + v, 0.99 * v - 0.05 * x + draw.gauss(0, 0.02)) for x, v in states]
        day = f"2016-{1 + hour // 24 // 28 % 12:02d}-{1 + hour // 24 % 28:02d} {hour % 24:02d}:00:00"
        lines.append(",".join([day, *(f"{x:.4f}" for x, _ in states)]))
    path.write_text("\n".join(lines) + "\n")


def _vocabulary() -> list[str]:
    draw = random.Random(1)
    return sorted({"".join(draw.choices(_LETTERS, k=5)) for _ in range(_WORDS)})


MAKERS: Mapping[str, Callable[[Path], None]] = {"words": words, "sentences": sentences, "series": series}
