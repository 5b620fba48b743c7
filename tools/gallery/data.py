"""Data for programs that bring none: text and numbers by rule, the same at every run. Knows no repository."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = 400
_ROWS = 1200


def words(path: Path) -> None:
    """Token numbers under 65 as unsigned 16-bit integers, of words that follow a rule: a model can learn some of it."""
    draw = random.Random(0)
    known = [[draw.randrange(65) for _ in range(draw.randint(2, 7))] for _ in range(40)]
    tokens = [token for _ in range(4000) for token in (*draw.choice(known), 1)]
    path.write_bytes(b"".join(token.to_bytes(2, "little") for token in tokens))


def sentences(path: Path) -> None:
    """Pairs of short sentences, a tab between them."""
    draw = random.Random(0)
    known = _vocabulary()
    lines = ("\t".join(" ".join(draw.choices(known, k=6)) for _ in range(2)) for _ in range(2000))
    path.write_text("\n".join(lines) + "\n")


def series(path: Path) -> None:
    """Hourly values of seven columns with a date in front and the name of the last as its target: waves and noise."""
    # A wave by a recurrence: no module of this file knows how to compute one, and none needs to.
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
