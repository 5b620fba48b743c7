"""Profiles of the models' training steps, before and after: the ladder, the layers, and predictions with their outcome.

A profile is its own file, profile-MODEL-before.json or -after.json next to the rows, which `autofuse compare` and the
HTML page read. A row contains the levels of the ladder and the step. Places are searched in the original model.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.results.profile import Profile
from benchmarks.gpu.models import FULL, TOY, TrainedModel
from benchmarks.gpu.store import Results, Row, Setting, Task

SIDES = ("before", "after")


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each model and side."""
    models = TOY if setting.toy else FULL
    return [
        Task(f"profiles/{name}/{side}", partial(row, trained, side, setting, results.folder), 90)
        for name, trained in models.items() for side in SIDES
    ]  # fmt: skip


def row(trained: TrainedModel, side: str, setting: Setting, folder: Path) -> Row:
    """The levels by name, the seconds of the step, and the places by predicted gain.

    A level is None if the machine cannot measure it.
    """
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

    profile = autofuse.profile(model, batch, step=step, name=f"{trained.name}, {side}", steps=20, progress=False)
    (folder / f"profile-{trained.name}-{side}.json").write_text(profile.to_json() + "\n", encoding="utf-8")
    return {
        "model": trained.name, "side": side, "seconds": profile.timing.median,
        "tokens_per_second": profile.timing.tokens_per_second, "peak_bytes": profile.memory.peak_bytes,
        "rungs": {level.name: level.value for level in profile.ladder},
        "attributed": {"forward": profile.attribution.forward, "backward": profile.attribution.backward},
        "places": _places(profile), "notes": list(profile.notes),
    }  # fmt: skip


def _places(profile: Profile) -> list[Row]:
    return [
        {
            "rule": place.rule, "module": layer.fqn, "status": place.status, "seconds": place.seconds,
            "predicted_seconds": place.predicted_seconds, "predicted_gain": place.predicted_gain,
        }
        for layer, place in profile.places[:40]
    ]  # fmt: skip
