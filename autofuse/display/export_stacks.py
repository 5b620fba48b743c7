"""Flame graphs of a profile: collapsed stacks and speedscope files. Returns text and writes no file.

A stack is the path of modules to a layer, and its weight is the layer's own time, so that the widths of a flame graph
add up. Collapsed stacks are the input of Brendan Gregg's flamegraph.pl, inferno and many other tools; the format of
speedscope is https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autofuse.results.profile import Layer, Profile

Stack = tuple[str, ...]
_PHASES = ("forward", "backward", "optimizer")


def stacks(profile: Profile) -> Iterator[tuple[Stack, str, float]]:
    """Each layer's stack, the phase, and its own seconds in that phase of one step; none without time."""
    kinds = {layer.fqn: layer.kind for layer in profile.layers}
    for layer in profile.layers:
        path = _path(layer.fqn, profile.name, kinds)
        for phase in _PHASES:
            seconds = _own_seconds(layer, phase)
            if seconds > 0:
                yield path, phase, seconds


def collapsed(profile: Profile) -> str:
    """One line for each stack: the frames and the phase, separated by ";", then a space and whole nanoseconds."""
    lines = []
    for path, phase, seconds in stacks(profile):
        nanoseconds = round(seconds * 1e9)
        if nanoseconds:
            lines.append(f"{';'.join(map(_one_frame, (*path, phase)))} {nanoseconds}\n")
    return "".join(lines)


def speedscope(profile: Profile) -> dict[str, Any]:
    """A file of speedscope: one profile of all phases together, and one of each phase."""
    frames: dict[str, int] = {}
    found = list(stacks(profile))
    groups = {"all phases": found} | {phase: [one for one in found if one[1] == phase] for phase in _PHASES}
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "version": "0.0.1",
        "name": profile.name,
        "exporter": "autofuse",
        "activeProfileIndex": 0,
        "profiles": [_sampled_profile(name, group, frames) for name, group in groups.items() if group],
        "shared": {"frames": [{"name": name} for name in frames]},
    }


def _sampled_profile(name: str, group: list[tuple[Stack, str, float]], frames: dict[str, int]) -> dict[str, Any]:
    """One profile of a speedscope file, with one sample for each stack.

    Args:
        name: the name of the profile.
        group: the stacks with their seconds.
        frames: the index of each frame. New frames are added.
    """
    samples = [[frames.setdefault(frame, len(frames)) for frame in (*path, phase)] for path, phase, _ in group]
    weights = [seconds for *_, seconds in group]
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _path(fqn: str, root: str, kinds: dict[str, str]) -> Stack:
    """The modules from the model to a layer, with their classes: ("GPT", "h.0 (Block)", "h.0.attn (Attention)")."""
    if not fqn or fqn.startswith("("):
        return (root, fqn) if fqn else (root,)
    parts = fqn.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return (root, *(f"{name} ({kinds[name]})" if kinds.get(name) else name for name in names))


def _own_seconds(layer: Layer, phase: str) -> float:
    work = getattr(layer, f"own_{phase}", None) or getattr(layer, phase, None)
    return 0.0 if work is None else float(work.seconds)


def _one_frame(name: str) -> str:
    return name.replace(";", ",").replace("\n", " ").replace("\r", " ")
