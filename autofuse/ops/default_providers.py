"""The default providers: what runs without a measurement. docs/kernels.md has the table.

`python -m autofuse.ops.default_providers` prints the table again.
"""

from __future__ import annotations

import sys

import autofuse.ops  # noqa: F401 - importing it defines the operations
from autofuse.kernels.operation import OPERATIONS, Operation

_DEVICES = {"cuda": "CUDA", "cpu": "CPU"}


def default_order(operation: Operation, device: str) -> tuple[str, ...]:
    """The providers that are tried in turn on a type of device, if all are installed; torch comes last."""
    own = [p.name for p in operation.providers if p.default and p is not operation.torch and device in p.devices]
    return (*own, operation.torch.name)


def markdown() -> str:
    """A row for each operation: its providers on each device, and below how many elements torch's code runs."""
    lines = [
        "| operation | " + " | ".join(_DEVICES.values()) + " | elsewhere | plain torch below |",
        "| --- " * 5 + "|",
    ]
    for name in sorted(OPERATIONS):
        operation = OPERATIONS[name]
        orders = [", then ".join(default_order(operation, d)) for d in (*_DEVICES, "elsewhere")]
        below = f"{operation.least:,} elements" if operation.has_choice else "any number"
        lines.append(f"| `{name}` | {' | '.join(orders)} | {below} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
