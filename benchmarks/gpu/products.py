"""Times the matrix products of a model's head on a GPU, for vocabularies that are multiples of 64 and others.

python -m benchmarks.gpu.products --output products.json

The products of one block of rows in bfloat16: the logits, the gradient of x, and the gradient of the weight, in
bfloat16 and in float32, written or added to a sum. A row of logits may be longer than its classes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu.store import environment_of

ROWS = 4096
SIZES = ((50257, 50257, 768), (50257, 50304, 768), (50304, 50304, 768), (128256, 128256, 2048))
_WARM, _RUNS = 2, 6


def row(classes: int, distance: int, width: int) -> dict[str, int]:
    """Microseconds of each product. `distance`: entries from one row of logits to the next."""
    half = {"device": "cuda", "dtype": torch.bfloat16}
    x, weight = torch.randn(ROWS, width, **half), torch.randn(classes, width, **half)
    logits = torch.randn(ROWS, distance, **half)[:, :classes]
    of_x, of_weight = torch.empty_like(x), torch.empty_like(weight)
    total = torch.empty_like(weight, dtype=torch.float32)
    aten, wide = torch.ops.aten, torch.float32
    calls: dict[str, Callable[[], object]] = {
        "logits": lambda: torch.mm(x, weight.T, out=logits),
        "gradient of x": lambda: torch.mm(logits, weight, out=of_x),
        "gradient of the weight": lambda: torch.mm(logits.T, x, out=of_weight),
        "the same in fp32": lambda: aten.mm.dtype_out(logits.T, x, wide, out=total),
        "the same, added to a sum": lambda: aten.addmm.dtype_out(total, logits.T, x, wide, out=total),
    }
    found = {name: round(_seconds(call) * 1e6) for name, call in calls.items()}
    return {"classes": classes, "row": distance, "width": width, **found}


def _seconds(call: Callable[[], object]) -> float:
    for _ in range(_WARM):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()  # type: ignore[no-untyped-call]
    for _ in range(_RUNS):
        call()
    end.record()  # type: ignore[no-untyped-call]
    end.synchronize()  # type: ignore[no-untyped-call]
    return float(start.elapsed_time(end)) / _RUNS / 1e3  # type: ignore[no-untyped-call]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("This machine has no CUDA GPU.", file=sys.stderr)
        return 2
    data = {
        "version": 1, "environment": environment_of(torch.device("cuda")), "unit": "microseconds", "rows": ROWS,
        "products": [row(*sizes) for sizes in SIZES],
    }  # fmt: skip
    options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
