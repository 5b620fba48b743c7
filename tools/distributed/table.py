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

A command writes this page:

```sh
python -m tools.distributed --output docs/distributed.md
```

Each row is a way to train with several processes, which torchrun starts. A small decoder with hand-written layers
(`tools/distributed/model.py`) is trained for {STEPS} steps twice, plain and optimized, from the same parameters and on
the same batches. Each rank has its own batches. A row holds if

- the losses of all steps on all ranks and the final parameters are equal up to rounding. The bound is that of the
  verification: a run in double is exact, and runs with random rounding show the effect of rounding
  ([soundness.md](soundness.md), `autofuse/verify/bounds.py`);
- torch's profiler counted the expected calls of fused operators in the last step: the number of sites, times micro
  batches, times two with recomputing checkpoints; and none in the plain model. Otherwise, equal results would prove
  nothing, because every call may have run the original;
- all ranks made the same decisions.

`--list` lists the rows, `--only WORDS` runs some, `--device cuda` runs them with nccl if there are enough GPUs, and
`--json FILE` writes every detail.
"""

_LEGEND = """\
Fused by rule: the number of sites of each rule; a rule that became part of a larger one counts too. Ran in a step:
calls of fused attention, norm and SiLU on rank 0. Difference: the largest difference of a loss between plain and
optimized, in nats.
"""

_AROUND = """\
## What to know

- **The order is free.** `optimize` before wrapping verifies at once. If the model is sharded, distributed or on the
  meta device, the example inputs are not used: each module is captured and verified at its first call, when its
  parameters are gathered. A model with parameters on the meta device runs its original code until they are
materialized.
- **A fused call never reads missing parameters.** A rule may read the parameters of a child without calling it (a gated
  MLP, an add and the norm after it). If the child is sharded separately or distributed, its guard fails, and the code
  between the children is fused instead: the activation with its product, or the norm alone.
- **Tensor parallelism.** autofuse captures a module's forward as this rank runs it. After a split, each rank has some
  of the heads, so the model must view heads as -1, as usual for tensor parallelism. Modules that get DTensors are
  captured as programs on whole tensors.
- **Verification of parts.** If a child is not gathered while its parent is verified, its parameters get random numbers,
  the same on both sides. Under tensor parallelism, each rank verifies its own part, without communication.
- **Ranks agree.** At `optimize` with example inputs, rank 0 decides, and the others decline what it declined. A rank
  that cannot fuse what rank 0 fused raises an error that names the module, the rule and both reasons. At later
  captures, the first rank decides, and no rank waits. [A decision](decisions/ranks-agree-through-the-store.md) explains
why.
- **Names are those of your model.** Reports and `modules=` use `blocks.0.attention`, without `_fsdp_wrapped_module`,
  `_checkpoint_wrapped_module`, `_orig_mod` or `module`.
"""


def as_markdown(results: Sequence[Result]) -> str:
    parts = [_HEAD, _counts(results), *_tables(results), _LEGEND, *_notes(results), _AROUND]
    return "\n".join(p.rstrip() + "\n" for p in parts if p)


def as_json(results: Sequence[Result]) -> str:
    versions = {"autofuse": autofuse.__version__, "torch": torch.__version__}
    return json.dumps({"versions": versions, "rows": [asdict(r) for r in results]}, indent=2) + "\n"


def _counts(results: Sequence[Result]) -> str:
    verdicts = [r.verdict for r in results]
    described = [f"{verdicts.count(v)} {v}" for v in ("equal", "failed", "ended", "unavailable") if v in verdicts]
    devices = "; ".join(sorted({"CPU, gloo" if r.device == "cpu" else "CUDA, nccl" for r in results}))
    return f"torch {torch.__version__.split('+')[0]}, {devices}: {len(results)} rows, {', '.join(described)}."


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
        result.name, result.order, _join(result.sites), _join(result.seen), _number(result.difference),
        _number(result.allowed), result.verdict,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _notes(results: Sequence[Result]) -> Iterable[str]:
    yield "Optimized: " + "; ".join(f"*{k}*: {v}" for k, v in ORDERS.items()) + "."
    described = {f"{r.name}, {r.order}": r.reason for r in results if r.reason}
    described |= {r.name: r.note for r in results if r.note}
    if described:
        yield "## Rows with a word to say\n\n" + "\n".join(f"- **{name}**: {why}" for name, why in described.items())


def _join(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.1e}" if x else "0"
