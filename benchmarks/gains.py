"""Predicted gains against measured ones: what fusing each place would save, and what it saved.

    python -m benchmarks.gains --output benchmarks/results/gains.json
    python -m benchmarks.gains --only demo-1024

The demo's model at two lengths and the models of examples/. A module's own seconds are the sum of its operators', on
one thread, before and after interleaved. The clock counts the time that the thread had a core, so other programs do not
count. The prediction knows only the original. A kind of place is the same rule in layers of the same name.

Targets: for each kind, the prediction is within a factor of two of the measurement if it is more than a hundredth of
the step, and so is the saving of the whole step. Exits with 1 if one is missed.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import autofuse
from autofuse.demo import gpt as demo
from autofuse.measure.environment import environment
from autofuse.measure.step import training_step
from autofuse.profiling.live.gains import with_places
from autofuse.profiling.live.module_calls import ModuleNames, around_calls
from autofuse.profiling.live.operator_costs import Costs
from autofuse.profiling.live.operator_owner import Running
from autofuse.profiling.live.roofs import roofs
from autofuse.profiling.live.rule_places import read_places
from autofuse.results.before_after import Seconds, with_what_was_measured
from autofuse.results.comparison import Interval
from autofuse.results.profile import Layer, Profile, Timing, Work
from benchmarks.models import EXAMPLES, Example

FACTOR, LEAST, ROUNDS = 2.0, 0.01, 7
Own = Mapping[tuple[str, str], float]

MODELS: Mapping[str, Example] = MappingProxyType(
    {
        "demo-256": Example(
            lambda: demo.GPT(demo.Config(block_size=256)), lambda: (torch.randint(0, 64, (8, 256)),), 64
        ),
        "demo-1024": Example(
            lambda: demo.GPT(demo.Config(block_size=1024)), lambda: (torch.randint(0, 64, (2, 1024)),), 64
        ),
        **{name: EXAMPLES[name] for name in ("gpt", "bert", "llama", "vit")},
    }
)


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    torch.set_num_threads(1)  # the calling thread's clock does not count other threads
    rows = []
    for name in options.only or MODELS:
        rows.append(row(name))
        print(as_text(rows[-1]), flush=True)
    if options.output:
        data = {"version": 1, "benchmark": "gains", "targets": {"factor": FACTOR, "least": LEAST}}
        text = json.dumps(data | {"environment": environment(torch.device("cpu")), "rows": rows}, indent=2)
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0 if all(r["met"] for r in rows) else 1


def row(name: str) -> dict[str, Any]:
    """One model: its step, and every kind of place, predicted and measured."""
    torch.manual_seed(0)
    before, inputs = MODELS[name].build().train(), MODELS[name].inputs()
    after = autofuse.optimize(copy.deepcopy(before), inputs, tune=False)
    owns = in_turns((before, after), inputs)
    steps = [sum(own.values()) for own in owns]
    predicted = with_places(_layers(before, owns[0]), read_places(before, inputs), Costs(roofs("cpu")), steps[0])
    sides = [_profile(step, layers) for step, layers in zip(steps, (predicted, _mark_fused(predicted)), strict=True)]
    measured, _ = with_what_was_measured(*sides, *map(_by_layer, owns))
    kinds = _kinds(measured, steps[0])
    saving = sum(kind["predicted_saving"] for kind in kinds)
    step = {
        "before": steps[0], "after": steps[1], "predicted_ratio": steps[0] / (steps[0] - saving),
        "measured_ratio": steps[0] / steps[1], "met": _met(saving, steps[0] - steps[1], steps[0]),
    }  # fmt: skip
    return {"name": name, "step": step, "places": kinds, "met": step["met"] and all(kind["met"] for kind in kinds)}


def in_turns(models: tuple[nn.Module, nn.Module], inputs: Any) -> list[Own]:
    """Own seconds by module and phase of both models: the median of interleaved steps."""
    seconds_taken: list[list[Own]] = [[], []]
    for done in range(ROUNDS + 2):
        for model, steps in zip(models, seconds_taken, strict=True):
            own = _own(model, inputs)
            if done >= 2:  # the first two steps are warm-up
                steps.append(own)
    return [{key: median(s.get(key, 0.0) for s in steps) for key in steps[0]} for steps in seconds_taken]


def _own(model: nn.Module, inputs: Any) -> Own:
    running = Running()
    clock = _Clock(running)
    with around_calls(ModuleNames({"": model}), running.called), clock:
        training_step(model, inputs)
    return clock.seconds


class _Clock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Seconds of the calling thread in each operator, by the module and phase in which it runs."""

    def __init__(self, running: Running) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running, self.seconds = running, Counter[Any]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.thread_time()
        result = function(*args, **(kwargs or {}))
        seconds_taken = time.thread_time() - start
        if getattr(function, "namespace", "") != "prim":
            owner = self.running.now()
            self.seconds[owner.fqn, owner.phase] += seconds_taken
        return result


def _layers(model: nn.Module, own: Own) -> list[Layer]:
    names = [name for name, _ in ModuleNames({"": model}).items()]
    work = [[Work(own.get((name, phase), 0.0)) for phase in ("forward", "backward")] for name in names]
    return [Layer(name, "", 1, *both, *both) for name, both in zip(names, work, strict=True)]


def _mark_fused(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers with every place fused, because optimize was called without measuring."""
    return tuple(
        replace(layer, places=tuple(replace(p, status="fused") if p.status == "applies" else p for p in layer.places))
        for layer in layers
    )


def _profile(step: float, layers: tuple[Layer, ...]) -> Profile:
    return Profile("", Timing((step,), Interval(step, step)), (), layers)


def _by_layer(own: Own) -> Seconds:
    found = Counter[Any]()
    for (name, _), seconds in own.items():
        found[name] += seconds
    return found


def _kinds(measured: Profile, step: float) -> list[dict[str, Any]]:
    """Sums over the places of one rule in layers of one name. Parts of larger places are in these."""
    found: dict[tuple[str, str], Counter[Any]] = {}
    for layer, place in measured.places:
        if place.predicted_saving is None or place.measured_saving is None:
            continue
        sums = found.setdefault((place.rule, re.sub(r"\b\d+\b", "*", layer.fqn)), Counter())
        sums.update(
            places=1, seconds=place.seconds, predicted_saving=place.predicted_saving,
            measured_saving=place.measured_saving,
        )  # fmt: skip
    return [
        {"rule": rule, "layer": name, **sums, "met": _met(sums["predicted_saving"], sums["measured_saving"], step)}
        for (rule, name), sums in found.items()
    ]


def _met(predicted: float, measured: float, step: float) -> bool:
    """Within the factor, or both too small to matter."""
    if max(abs(predicted), abs(measured)) < LEAST * step:
        return True
    return predicted * measured > 0 and 1 / FACTOR <= predicted / measured <= FACTOR


def as_text(row: Mapping[str, Any]) -> str:
    """A line for the step and one for each kind of place, in milliseconds."""
    step = row["step"]
    lines = [
        f"{row['name']:<10} {step['before'] * 1e3:7.1f} ms: predicted {step['predicted_ratio']:.2f}x, measured "
        f"{step['measured_ratio']:.2f}x{'' if step['met'] else '  MISSED'}"
    ]
    for kind in row["places"]:
        lines.append(
            f"  {kind['rule']} {kind['layer']:<24} x{kind['places']}  takes {kind['seconds'] * 1e3:7.2f}  predicted "
            f"{kind['predicted_saving'] * 1e3:7.2f}  measured {kind['measured_saving'] * 1e3:7.2f}"
            f"{'' if kind['met'] else '  MISSED'}"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(MODELS), help="these models")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write JSON here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
