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

This page is written by a command and never by hand:

```sh
python -m tools.distributed --output docs/distributed.md
```

Each row is a way to train on several processes, which torchrun starts. The same small decoder, every layer of it
spelled out by hand (`tools/distributed/model.py`), is trained for {STEPS} steps twice, plain and optimized, from the
same parameters and on the same batches, each rank on its own. A row holds if

- the losses of all steps on all ranks, and the parameters in the end, are equal but for rounding. How much rounding
  explains is derived as verification derives it: a run in double says what is exact, runs that round each step at
  random say how far rounding leads away from it ([soundness.md](soundness.md), `autofuse/verify/bounds.py`);
- torch's profiler saw the fused operators run in the last step, as many as there are places, times micro batches, times
  two where checkpoints recompute; and none in the plain model. Numbers that agree would prove nothing if every
  call had fallen back;
- all ranks made the same decisions.

`--list` names the rows, `--only WORDS` runs some, `--device cuda` runs them on nccl where there are as many GPUs,
`--json FILE` keeps every detail.
"""

_LEGEND = """\
Fused by rule: at how many places each rule applied; a rule that became part of a larger one counts too. Ran in a step:
calls of fused attention, norm and SiLU on rank 0. Difference: the greatest one of any loss between plain and
optimized, in nats.
"""

_AROUND = """\
## What to know

- **Order is free.** `optimize` before wrapping verifies at once. On a model that is sharded, distributed or on the meta
  device the example inputs are put by: each module is captured and verified at its first call, when its parameters
  are gathered. A model with parameters on the meta device runs its original code until they are materialized.
- **A fused call never reads what is not there.** Where a rule would read a child's parameters past the child (a gated
  MLP, an add with the norm behind it) and the child is sharded on its own or distributed, the guard on that child does
  not hold, and what lies between the children is fused instead: the activation with its product, the norm by itself.
- **Tensor parallelism.** A module's forward is read as this rank runs it: projections that are split leave it some of
  the heads, so heads are counted by -1, as in any model that is to be split. Modules that are handed DTensors are read
  as programs on whole tensors.
- **Verification of parts.** Where a child is not gathered while its parent is verified, numbers are made up for its
  parameters, on both sides alike. Under tensor parallelism each rank verifies its own part, without communication.
- **Ranks agree.** At `optimize` with example inputs rank 0 decides, and the others leave out what it left out. A rank
  that cannot fuse what rank 0 fused raises an error that names the module, the rule and both reasons. At later captures
  the first rank to come decides, and nobody waits. [A decision](decisions/ranks-agree-through-the-store.md) says why.
- **Names are yours.** Reports and `modules=` speak of `blocks.0.attention`, whatever `_fsdp_wrapped_module`,
  `_checkpoint_wrapped_module`, `_orig_mod` or `module` stand in between.
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
        yield "## Rows with a word to say\n\n" + "\n".join(f"- **{name}**: {why}" for name, why in told.items())


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.1e}" if x else "0"
