"""Profiles of the models' training steps before and after: the ladder, layers, what was predicted and what came of it.

A profile is a file of its own, profile-MODEL-before.json and -after.json beside the rows, which `autofuse compare` and
the HTML page read; a row holds the levels and the step. Places are looked for in the model as it was.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.results.profile import Profile
from benchmarks.gpu.models import FULL, TOY, Trained
from benchmarks.gpu.store import Results, Row, Setting, Task

SIDES = ("before", "after")


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each model and side."""
    models = TOY if setting.toy else FULL
    return [
        Task(f"profiles/{name}/{side}", partial(row, trained, side, setting, results.folder), 90)
        for name, trained in models.items() for side in SIDES
    ]  # fmt: skip


def row(trained: Trained, side: str, setting: Setting, folder: Path) -> Row:
    """The levels by name (None where the machine cannot tell), the step's seconds, and the places by predicted gain."""
    model = trained.model(setting.device, torch.bfloat16)
    batch = trained.data(setting.device)
    if side == "after":
        autofuse.optimize(model, batch[:1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(called: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        ids, targets = inputs
        F.cross_entropy(called(ids).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = autofuse.profile(model, batch, step=step, name=f"{trained.name}, {side}", steps=20, progress=False)
    (folder / f"profile-{trained.name}-{side}.json").write_text(found.to_json() + "\n", encoding="utf-8")
    return {
        "model": trained.name, "side": side, "seconds": found.timing.median,
        "tokens_per_second": found.timing.tokens_per_second, "peak_bytes": found.memory.peak_bytes,
        "rungs": {level.name: level.value for level in found.ladder},
        "attributed": {"forward": found.attribution.forward, "backward": found.attribution.backward},
        "places": _places(found), "notes": list(found.notes),
    }  # fmt: skip


def _places(found: Profile) -> list[Row]:
    return [
        {
            "rule": place.rule, "module": layer.fqn, "status": place.status, "seconds": place.seconds,
            "predicted_seconds": place.predicted_seconds, "predicted_gain": place.predicted_gain,
        }
        for layer, place in found.places[:40]
    ]  # fmt: skip
