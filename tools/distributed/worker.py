"""The script that torchrun starts: trains every row plain and optimized. Rank 0 writes the results.

If a row raises on every rank, the next row follows. If ranks leave a row differently or not at all, the processes end,
and the launcher starts new ones for the remaining rows.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import autofuse
from tools.distributed.matrix import rows_of
from tools.distributed.result import Result
from tools.distributed.rows import Job, Order, Way
from tools.distributed.training import Ran, Reached, Truth, compare_runs, trained

LIMIT = 60.0  # seconds for a row, and for waiting for the other ranks at its end


def main(argv: list[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo", timeout=timedelta(seconds=LIMIT))
    rank, world = dist.get_rank(), dist.get_world_size()
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    truth = Truth()
    for number, (way, order) in enumerate(rows_of(world, options.only)):
        if number < options.skip:
            continue
        faulthandler.dump_traceback_later(2 * LIMIT, exit=True)
        result = _row(Result(number, way.name, order, world, options.device, note=way.note), way, order, truth)
        faulthandler.cancel_dump_traceback_later()
        if rank == 0:
            with options.out.open("a") as lines:
                lines.write(json.dumps(vars(result)) + "\n")
        if not _has_same_outcome(number, result.raised):
            os._exit(3)
    dist.barrier()
    os._exit(0)  # DDP's reducer holds the GIL while it waits for a gloo thread that may need it: not torn down here


def _row(result: Result, way: Way, order: Order, truth: Truth) -> Result:
    began = time.perf_counter()
    try:
        if missing := way.lacks(result.device):
            result.verdict, result.reason = "unavailable", missing
        else:
            _run(way, order, truth, result)
    except AssertionError as error:
        result.verdict, result.reason = "failed", str(error)
    except Exception as error:  # a row may raise any error, and the run continues
        said = str(error).splitlines() or [""]
        result.verdict, result.reason = "failed", f"{type(error).__name__}: {said[0]}"
        result.raised = True
        traceback.print_exc()
    result.seconds = round(time.perf_counter() - began, 2)
    gc.collect()
    return result


def _run(way: Way, order: Order, truth: Truth, result: Result) -> None:
    rank, world, device = dist.get_rank(), dist.get_world_size(), result.device
    plain, plain_ran, plain_reached = _train(way, Job(device, rank, world, order, False, way.recipe))
    fused, fused_ran, fused_reached = _train(way, Job(device, rank, world, order, True, way.recipe))
    report = autofuse.report(fused)
    result.sites = dict(sorted(Counter(s.rule for s in report.with_status("fused")).items()))
    result.declined = {s.module: s.reason for s in report if s.status != "fused"}
    result.seen = fused_ran.seen
    _check_agreement([(s.rule, s.module, s.status) for s in report])
    if rank == 0:
        exact, rounded = truth.of(way.replicas(world), way.recipe)
        found = compare_runs(plain_reached, fused_reached, exact, rounded, way.recipe.dtype)
        result.difference, result.allowed = found.difference, found.allowed
        assert not found.reason, found.reason
    # Every rank checks its own results.
    assert not plain_ran.seen, f"the plain model ran fused operators: {plain_ran.seen}"
    micro = way.recipe.micro
    expected = {kind: n * micro for kind, n in way.expected.items()}
    found = {kind: n for kind, n in fused_ran.seen.items() if kind in expected}
    assert found == expected, f"fused operators seen: {_join(fused_ran.seen)}; expected: {_join(expected)}"
    if way.finish is not None:
        way.finish(Job(device, rank, world, order, True, way.recipe), plain, fused)


def _train(way: Way, job: Job) -> tuple[nn.Module, Ran, Reached]:
    model = way.wrap(job, way.build(job))
    midway = (lambda: job.optimized(model)) if job.order == "midway" else (lambda: None)
    with way.throughout():
        ran = trained(model, way.replica(job.rank), way.recipe, job.device, way.clip, way.quiet, way.around, midway)
    return model, ran, _gather_results(way, job, model, ran)


def _gather_results(way: Way, job: Job, model: nn.Module, ran: Ran) -> Reached:
    described: list[Any] = [None] * job.world
    dist.all_gather_object(described, (way.replica(job.rank), ran.losses))
    losses = dict(described)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    parameters = {n: t.detach().cpu().clone() for n, t in whole.items()}
    return Reached(torch.tensor([losses[r] for r in sorted(losses)], dtype=torch.float64), parameters)


def _check_agreement(decisions: list[Any]) -> None:
    described: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(described, decisions)
    odd = [r for r, t in enumerate(described) if t != described[0]]
    assert not odd, (
        f"rank {odd[0]} decided otherwise than rank 0: {sorted(set(described[odd[0]]) ^ set(described[0]))[:3]}"
        if odd
        else ""
    )


def _has_same_outcome(number: int, raised: bool) -> bool:
    """Whether all ranks have left the row, and all or none raised. Otherwise, their collectives may not match."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"row {number} rank {dist.get_rank()}", str(raised))
    keys = [f"row {number} rank {r}" for r in range(dist.get_world_size())]
    try:
        store.wait(keys, timedelta(seconds=LIMIT))
    except RuntimeError:
        return False
    return len({store.get(k) for k in keys}) == 1


def _join(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items())) or "none"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tools.distributed.worker", description=__doc__)
    parser.add_argument("out", type=Path, help="a file that a line of JSON is added to for each row")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of rows")
    parser.add_argument("--skip", type=int, default=0, help="how many rows to pass over")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
