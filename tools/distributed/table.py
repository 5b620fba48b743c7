"""Results -> docs/distributed.md, and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import torch

import autofuse
from tools.distributed.result import Result
from tools.distributed.rows import ORDERS
from tools.distributed.training import STEPS

_HEAD = f"""\
# The distributed matrix

A command writes this page. Do not edit it:

```sh
python -m tools.distributed --output docs/distributed.md
```

Each row is one way to train on several processes, started by torchrun. A small decoder with plain PyTorch layers
(`tools/distributed/model.py`) is trained twice for {STEPS} steps, plain and optimized, from the same parameters and on
the same batches. Each rank has its own batches. A row passes if

- the losses of all steps on all ranks and the final parameters are equal up to rounding. The bound is derived as in
  verification: a run in double gives the exact result, and runs with random rounding show how far rounding leads away
  from it ([soundness.md](soundness.md), `autofuse/verify/bounds.py`);
- torch's profiler saw the fused operators in the last step: the number of places, times micro batches, times two if
  checkpoints recompute. It saw none in the plain model. Without this check, equal numbers would prove nothing, because
  every call might have fallen back;
- all ranks made the same decisions.

`--list` lists the rows, `--only WORDS` runs some of them, `--device cuda` runs them on nccl if there are enough GPUs,
and `--json FILE` writes all details.
"""

_LEGEND = """\
Fused by rule: how many places each rule applied to. A rule that became part of a larger one counts, too. Ran in a step:
calls of fused attention, norm and SiLU on rank 0. Difference: the largest difference of a loss between plain and
optimized, in nats.
"""

_AROUND = """\
## What to know

- **The order does not matter.** `optimize` before wrapping verifies at once. If the model is sharded, distributed or on
  the meta device, the example inputs are stored, and each module is captured and verified at its first call, when its
  parameters are gathered. A model with parameters on the meta device runs its original code until they exist.
- **A fused call reads only parameters that are present.** Some rules read a child's parameters directly (a gated MLP,
  an add with the norm after it). If the child is sharded by itself or distributed, the guard on it fails. Then the
  operations between the children are fused instead: the activation with its product, the norm by itself.
- **Tensor parallelism.** A module's forward is read as this rank runs it. Split projections leave it some of the heads,
  so the number of heads is written as -1, as in any model that will be split. Modules that receive DTensors are read as
  programs on whole tensors.
- **Verification of parts.** If a child is not gathered while its parent is verified, both sides use the same made-up
  numbers for its parameters. Under tensor parallelism each rank verifies its own part, without communication.
- **Ranks agree.** With example inputs, rank 0 decides in `optimize`, and the others leave out the same sites. If a rank
  cannot fuse what rank 0 fused, it raises an error with the module, the rule and both reasons. At later captures the
  first rank decides, and no rank waits. [A decision](decisions/ranks-agree-through-the-store.md) explains why.
- **Names are the user's.** Reports and `modules=` use `blocks.0.attention`, without `_fsdp_wrapped_module`,
  `_checkpoint_wrapped_module`, `_orig_mod` or `module` in between.
"""


def as_markdown(results: Sequence[Result]) -> str:
    parts = [_HEAD, _counts(results), *_tables(results), _LEGEND, *_notes(results), _AROUND]
    return "\n".join(p.rstrip() + "\n" for p in parts if p)


def as_json(results: Sequence[Result]) -> str:
    versions = {"autofuse": autofuse.__version__, "torch": torch.__version__}
    return json.dumps({"versions": versions, "rows": [asdict(r) for r in results]}, indent=2) + "\n"


def _counts(results: Sequence[Result]) -> str:
    verdicts = [r.verdict for r in results]
    told = [f"{verdicts.count(v)} {v}" for v in ("equal", "failed", "ended", "unavailable") if v in verdicts]
    devices = "; ".join(sorted({"CPU, gloo" if r.device == "cpu" else "CUDA, nccl" for r in results}))
    return f"torch {torch.__version__.split('+')[0]}, {devices}: {len(results)} rows, {', '.join(told)}."


def _tables(results: Sequence[Result]) -> Iterable[str]:
    for ranks in sorted({r.ranks for r in results}):
        lines = [
            f"## {ranks} ranks\n",
            "| wrapping | optimized | fused by rule | ran in a step | difference | allowed | verdict |",
            "| --- | --- | --- | --- | ---: | ---: | --- |",
            *(_row(r) for r in results if r.ranks == ranks),
        ]
        yield "\n".join(lines)


def _row(result: Result) -> str:
    cells = (
        result.name, result.order, _listed(result.sites), _listed(result.seen), _number(result.difference),
        _number(result.allowed), result.verdict,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _notes(results: Sequence[Result]) -> Iterable[str]:
    yield "Optimized: " + "; ".join(f"*{k}*: {v}" for k, v in ORDERS.items()) + "."
    told = {f"{r.name}, {r.order}": r.reason for r in results if r.reason}
    told |= {r.name: r.note for r in results if r.note}
    if told:
        yield "## Notes on rows\n\n" + "\n".join(f"- **{name}**: {why}" for name, why in told.items())


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.1e}" if x else "0"
