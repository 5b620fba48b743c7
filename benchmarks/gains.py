"""Compares predicted gains with measured ones: what fusing each place would save, and what it saved.

    python -m benchmarks.gains --output benchmarks/results/gains.json
    python -m benchmarks.gains --only demo-1024

The demo's model at two lengths, the models of examples/, and library models of two layers, width 256, that the
predictor was not tuned on. Every module's own seconds are the sum of its operators' seconds, on one thread. Steps of
the original, the fused model and a second copy of the original, the A/A control, are interleaved. The clock is the time
for which the thread had a core. Other programs do not count, but they slow the caches. The prediction only knows the
model before. A kind of place is the same rule in layers of the same name. The target: the prediction for a kind is
within a factor of two of the measurement, wherever it is more than a hundredth of the step, and so is the saving of the
step. Exits with 1 if one is missed. benchmarks/gain_factors.py computes ranges from the result.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

import autofuse
from autofuse.demo import gpt as demo
from autofuse.measure.environment import environment
from autofuse.profiling.live.gains import with_places
from autofuse.profiling.live.module_calls import ModuleNames
from autofuse.profiling.live.operator_clock import OwnSeconds, time_operators
from autofuse.profiling.live.operator_costs import Costs
from autofuse.profiling.live.roofs import roofs
from autofuse.profiling.live.rule_places import read_places
from autofuse.results.before_after import Seconds, with_measured_savings
from autofuse.results.comparison import Interval
from autofuse.results.profile import Layer, Profile, Timing, Work
from benchmarks import no_loss
from benchmarks.models import EXAMPLES, Example

FACTOR, LEAST, ROUNDS = 2.0, 0.01, 7
TUNED = ("demo-256", "demo-1024", "gpt", "bert", "llama", "vit")
UNTUNED = (
    "BertModel", "RobertaModel", "ElectraModel", "MPNetModel", "RoFormerModel", "GPTNeoXModel", "BiogptModel",
    "LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model", "GemmaModel", "Gemma2Model", "PhiModel", "Phi3Model",
    "OlmoModel", "Olmo2Model", "GraniteModel", "CohereModel", "GPT2Model", "OPTModel", "DistilBertModel", "BartModel",
    "T5Model", "ViTModel", "Dinov2Model", "CLIPVisionModel", "StableLmModel",
)  # fmt: skip


def _library_model(name: str) -> Example:
    """A model of transformers, with batches of 4 sequences of 128 tokens or 4 images."""
    kind = no_loss.MODELS[name][2]
    return Example(lambda: no_loss.build_model(name), lambda: no_loss.inputs_of(kind, (4, 128)), no_loss.CLASSES)


MODELS: Mapping[str, Example] = MappingProxyType(
    {
        "demo-256": Example(
            lambda: demo.GPT(demo.Config(block_size=256)), lambda: (torch.randint(0, 64, (8, 256)),), 64
        ),
        "demo-1024": Example(
            lambda: demo.GPT(demo.Config(block_size=1024)), lambda: (torch.randint(0, 64, (2, 1024)),), 64
        ),
        **{name: EXAMPLES[name] for name in TUNED[2:]},
        **{name: _library_model(name) for name in UNTUNED},
    }
)


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    torch.set_num_threads(1)  # what other threads do is not on the calling thread's clock
    rows, left_out = list[dict[str, Any]](), dict[str, str]()
    for name in options.only or MODELS:
        try:
            rows.append(row(name))
            print(as_text(rows[-1]), flush=True)
        except Exception as error:  # a library changes: the model is named, and the others are measured
            left_out[name] = f"{type(error).__name__}: {error}"
            print(f"{name}: left out: {left_out[name][:120]}", flush=True)
        if options.output:
            options.output.write_text(as_json(rows, left_out), encoding="utf-8")
    return 0 if all(r["met"] for r in rows) else 1


def as_json(rows: Sequence[Mapping[str, Any]], left_out: Mapping[str, str]) -> str:
    """The result as it is kept."""
    data = {"version": 2, "benchmark": "gains", "targets": {"factor": FACTOR, "least": LEAST}}
    data |= {"environment": environment(torch.device("cpu")), "left_out": left_out, "rows": rows}
    return json.dumps(data, indent=2) + "\n"


def row(name: str) -> dict[str, Any]:
    """One model: its step, and every kind of place, predicted and measured."""
    torch.manual_seed(0)
    before, inputs = MODELS[name].build().train(), MODELS[name].inputs()
    again, load = copy.deepcopy(before), os.getloadavg()[0]
    after = autofuse.optimize(copy.deepcopy(before), inputs, tune=False, verify=False)
    first, last, control = in_turns((before, after, again), inputs)
    steps = [sum(own.values()) for own in (first, last)]
    predicted = with_places(_layers(before, first), read_places(before, inputs), Costs(roofs("cpu")), steps[0])
    sides = [
        _profile(step, layers) for step, layers in zip(steps, (predicted, _with_all_fused(predicted)), strict=True)
    ]
    measured, _ = with_measured_savings(*sides, *map(_by_layer, (first, last)))
    kinds = _kinds(measured, steps[0])
    saving = sum(kind["predicted_saving"] for kind in kinds)
    step = {
        "before": steps[0], "after": steps[1], "predicted_ratio": steps[0] / (steps[0] - saving),
        "measured_ratio": steps[0] / steps[1], "control_ratio": steps[0] / sum(control.values()),
        "met": _is_within_factor(saving, steps[0] - steps[1], steps[0]), "load": load,
    }  # fmt: skip
    return {
        "name": name, "tuned": name in TUNED, "step": step, "places": kinds,
        "met": step["met"] and all(kind["met"] for kind in kinds),
    }  # fmt: skip


def in_turns(models: Sequence[nn.Module], inputs: Any) -> list[OwnSeconds]:
    """Own seconds by module and phase of each model: the median of steps that took turns."""
    taken: list[list[OwnSeconds]] = [[] for _ in models]
    for done in range(ROUNDS + 2):
        for model, steps in zip(models, taken, strict=True):
            own = time_operators(model, inputs)
            if done >= 2:  # all are warm
                steps.append(own)
    return [{key: median(s.get(key, 0.0) for s in steps) for key in steps[0]} for steps in taken]


def _layers(model: nn.Module, own: OwnSeconds) -> list[Layer]:
    names = [name for name, _ in ModuleNames({"": model}).items()]
    work = [[Work(own.get((name, phase), 0.0)) for phase in ("forward", "backward")] for name in names]
    return [Layer(name, "", 1, *both, *both) for name, both in zip(names, work, strict=True)]


def _with_all_fused(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The same layers with every place fused, because `optimize` ran without measurements."""
    return tuple(
        replace(layer, places=tuple(replace(p, status="fused") if p.status == "applies" else p for p in layer.places))
        for layer in layers
    )


def _profile(step: float, layers: tuple[Layer, ...]) -> Profile:
    return Profile("", Timing((step,), Interval(step, step)), (), layers)


def _by_layer(own: OwnSeconds) -> Seconds:
    found = Counter[Any]()
    for (name, _), seconds in own.items():
        found[name] += seconds
    return found


def _kinds(measured: Profile, step: float) -> list[dict[str, Any]]:
    """The sums over places of one rule in layers of one name. A part of a larger place is counted there."""
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
        {
            "rule": rule,
            "layer": name,
            **sums,
            "met": _is_within_factor(sums["predicted_saving"], sums["measured_saving"], step),
        }
        for (rule, name), sums in found.items()
    ]


def _is_within_factor(predicted: float, measured: float, step: float) -> bool:
    """Whether prediction and measurement are within the factor, or both are too small to matter."""
    if max(abs(predicted), abs(measured)) < LEAST * step:
        return True
    return predicted * measured > 0 and 1 / FACTOR <= predicted / measured <= FACTOR


def as_text(row: Mapping[str, Any]) -> str:
    """A line for the step and one for each kind of place, seconds in milliseconds."""
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
