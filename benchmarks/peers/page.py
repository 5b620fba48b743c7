"""docs/peers.md: the results of benchmarks.peers as tables."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.ways import EAGER, first_line

_HEAD = """\
# Side by side

The same hand-written models by eager PyTorch, other optimizers of models, and autofuse. `python -m benchmarks.peers`
measures it, and `--page docs/peers.md` writes this page from
[its results](../benchmarks/results/peers.json). `--models package.module:function` measures a model of yours.

{setting}

- **attention kernels**: the fused attention kernels that one forward pass runs.
- **places**: the places that `autofuse.report` lists as fused. The others have no such list: torch.compile writes loops
  for norms and activations, and does not name them.
- **step**: the median of a training step with `AdamW(fused=True)`, on one thread, in interleaved rounds.
- **against eager**: above 1 is faster than eager, with a 95 % interval.
- **peak**: the most memory that one step holds at a time, besides what it held before it, as torch's allocator sees it.
- **first step**: CPU seconds of the process from the model to the end of its first step, with cold caches; after the
  plus, those of the C++ compilers that it starts, where they were measured.
"""
_LOOKALIKES = """
## Look-alikes

Small models that resemble something with a fused kernel, and compute something else: a softmax over another dimension,
a norm by another variance, a mask after the softmax, a setting that changes between two calls. Outputs and gradients
are compared with the original in float64. A model that a way declines to run is not wrong. What autofuse leaves alone
and torch.compile turns into attention is wrong for both together.

| | right | declined | wrong |
| --- | --- | --- | --- |
"""
_OLDER = """
## Look-alikes with an older torch

Some ways do not run with the torch above. With {versions}:

| | right | declined | wrong |
| --- | --- | --- | --- |
"""
_BARS = 20  # characters for the fastest


def as_markdown(data: Mapping[str, Any], older: Mapping[str, Any] | None = None) -> str:
    """The page. `older` has the look-alikes with an older torch, for ways that do not run with this one."""
    models = "".join(_model(name, found) for name, found in data["models"].items())
    text = _HEAD.format(setting=_setting(data)) + models + _LOOKALIKES + _lookalikes(data["lookalikes"])
    if older is None:
        return text
    versions = f"torch {older['environment']['torch']}, {_versions(older)}"
    return text + _OLDER.format(versions=versions) + _lookalikes(older["lookalikes"])


def read_older(folder: Path) -> Mapping[str, Any] | None:
    """The results with an older torch, if the folder has them."""
    file = folder / "peers-older-torch.json"
    found: Mapping[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return found


def _setting(data: Mapping[str, Any]) -> str:
    about = data["environment"]
    clock = "the time for which the thread had a core" if counts_own_time(data) else "the wall clock"
    return (
        f"{about['processor']}, {about['cores']} cores, Python {about['python']}; {_versions(data)}. "
        f"The clock is {clock}. {load_sentence(about, data['load'])}"
    )


def _versions(data: Mapping[str, Any]) -> str:
    """The packages with their versions."""
    versions = {way["distribution"]: way["version"] for way in data["ways"].values() if way["version"]}
    return ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))


def counts_own_time(data: Mapping[str, Any]) -> bool:
    """Whether every model was timed by the time for which the thread had a core."""
    return {m["timed"].get("clock") for m in data["models"].values()} - {None} == {"core"}


def is_busy(about: Mapping[str, Any], loads: Sequence[float]) -> bool:
    """Whether more programs wanted to run than there are cores."""
    return max(loads) > int(about["cores"])


def load_sentence(about: Mapping[str, Any], loads: Sequence[float]) -> str:
    """A sentence on the other load of the machine during the measurement."""
    if is_busy(about, loads):
        return f"Other programs kept the cores busy: the load was {min(loads):.0f} to {max(loads):.0f}."
    return f"The load was {min(loads):.1f} to {max(loads):.1f}, this benchmark included."


def _model(name: str, found: Mapping[str, Any]) -> str:
    started, timed = found["started"], found["timed"]
    parameters = next((s["parameters"] for s in started.values() if "parameters" in s), 0)
    lines = [f"\n## {name}\n", f"{parameters / 1e6:.2f} million parameters.\n"]
    if "absent" in timed:
        lines.append(f"Steps were not timed: {timed['absent']}.\n")
    lines += ["| | attention kernels | places | step | against eager | peak | first step |", "| --- " * 7 + "|"]
    lines += [_row(way, each, timed) for way, each in started.items()]
    return "\n".join([*lines, "", *_bars(timed), ""])


def _row(way: str, started: Mapping[str, Any], timed: Mapping[str, Any]) -> str:
    if "absent" in started:
        return f"| {way} | did not run: {started['absent']} | | | | | |"
    seconds = timed.get("seconds", {}).get(way)
    against = timed.get("against_eager", {}).get(way)
    cells = (
        way, started["attention_kernels"], "" if started["places"] is None else started["places"],
        "" if seconds is None else f"{seconds * 1e3:.1f} ms", "" if against is None else ratio_text(against),
        "" if not started["peak_bytes"] else f"{started['peak_bytes'] / 2**20:.0f} MiB",
        _first_step(started),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _first_step(started: Mapping[str, Any]) -> str:
    own, compilers = started["first_step_cpu_seconds"], started.get("compiler_cpu_seconds")
    return f"{own:.0f} s" if compilers is None else f"{own:.0f} + {compilers:.0f} s"


def ratio_text(against: Mapping[str, Any]) -> str:
    """A ratio with its interval, as in "1.63x (1.53 to 1.68)"."""
    low, high = against["interval"]
    return f"{against['ratio']:.2f}x ({low:.2f} to {high:.2f})"


def _bars(timed: Mapping[str, Any]) -> Iterator[str]:
    """Describes the chart of steps per second in text."""
    seconds = timed.get("seconds", {})
    if EAGER not in seconds:
        return
    yield "```text"
    fastest, width = min(seconds.values()), max(map(len, seconds))
    for way, each in seconds.items():
        length = max(1, math.floor(_BARS * fastest / each + 0.5))
        yield f"{way:<{width}} {'█' * length:<{_BARS}} {1 / each:.1f} steps/s"
    yield "```"


def _lookalikes(verdicts: Mapping[str, Mapping[str, str]]) -> str:
    rows, notes = "", ""
    for way, each in verdicts.items():
        if "absent" in each:
            rows += f"| {way} | did not run: {each['absent']} | | |\n"
            continue
        counts = Counter(v.partition(":")[0] for v in each.values())
        rows += f"| {way} | {counts['right']} | {counts['declined']} | {counts['wrong']} |\n"
        if wrong := [name for name, verdict in each.items() if verdict == "wrong"]:
            notes += f"\nWrong with {way}: {', '.join(wrong)}.\n"
        if reasons := Counter(v.partition(": ")[2] for v in each.values() if v.startswith("declined")):
            notes += f"\nDeclined by {way}: {'; '.join(f'{n} times: {r}' for r, n in reasons.most_common(3))}.\n"
    return rows + notes


def reason_in(errors: str, status: int) -> str:
    """The reason why a process failed: the last line of its error, short and without a machine's folders."""
    lines = [line.strip() for line in errors.splitlines() if re.match(r"^[\w.]+(Error|Exception|NotHere|Exit)\b", line)]
    if not lines:
        return f"the process ended with {status}"
    return first_line(re.sub(r"^benchmarks\.peers\.ways\.NotHere: ", "", lines[-1]))
