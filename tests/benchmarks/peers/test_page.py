"""The page of the side-by-side benchmark: reasons are short, and name no folder of a machine."""

from __future__ import annotations

import pytest

from benchmarks.peers.page import ratio_text, reason_in


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("Traceback ...\nbenchmarks.peers.ways.NotHere: ViT is not in its list", "ViT is not in its list"),
        ("noise\nRuntimeError: no /home/me/lib.so here\n", "RuntimeError: no lib.so here"),
        ("ImportError: no name a in b (/home/me/b.py)", "ImportError: no name a in b"),
        ("Segmentation fault", "the process ended with -11"),
    ],
)  # fmt: skip
def test_a_reason_is_the_last_error(errors: str, reason: str) -> None:
    assert reason_in(errors, -11) == reason


def test_a_ratio_has_its_interval() -> None:
    assert ratio_text({"ratio": 1.634, "interval": [1.5, 1.7]}) == "1.63x (1.50 to 1.70)"
