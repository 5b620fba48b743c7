"""Run by test_others.py in a process of its own: operations whose other packages may run on this machine.

Prints, as JSON, for each operation who took its calls, why others did not, and a digest of results and gradients; and
which modules of other packages were imported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys

import torch

import autofuse.ops as ops
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.package_providers import PROVIDERS
from tests.kernels.operands import classes, tensor

OF_OTHERS = ("apex", "cutlass", "flash_attn", "flash_attn_2_cuda", "fused_layer_norm_cuda", "liger_kernel", "quack")
CALLS = {
    "rms_norm": lambda: ops.rms_norm(tensor(64, 32), tensor(32), 1e-3),
    "layer_norm": lambda: ops.layer_norm(tensor(64, 32), tensor(32), tensor(32, seed=1), 1e-3),
    "dropout_add_norm": lambda: ops.dropout_add_norm(
        tensor(64, 32), tensor(64, 32, seed=1), tensor(32), norm="rms", eps=1e-3
    ),
    "cross_entropy": lambda: ops.cross_entropy(tensor(64, 32), classes(64, count=32)),
}


def main() -> None:
    report = {}
    for name, call in CALLS.items():
        operation = OPERATIONS.get(name)
        if operation is None:
            continue
        others = [dataclasses.replace(p, devices=("cpu",), default=True) for p in PROVIDERS if p.operation == name]
        known = [p for p in operation.providers if p not in PROVIDERS]
        operation.providers, operation.least = (*others, *known), 1
        operation.forget()
        result = call()
        result.sum().backward()
        counts = sorted(operation.counts)
        refusals = {p.name: operation.failures.get(p.name) or p.unsuited("cpu", torch.float32, False) for p in others}
        report[name] = {
            "took": counts, "refusals": refusals, "numbers": [round(v, 3) for v in result.detach().flatten().tolist()]
        }  # fmt: skip
    imported = sorted(name for name in sys.modules if name in OF_OTHERS)
    digest = hashlib.sha256(json.dumps([r["numbers"] for r in report.values()]).encode()).hexdigest()
    for r in report.values():
        del r["numbers"]
    print(json.dumps({"operations": report, "imported": imported, "digest": digest}))


if __name__ == "__main__":
    main()
