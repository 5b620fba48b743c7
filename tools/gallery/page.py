"""Writes the results as Markdown and as JSON."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version

from tools.gallery.repository import Repository
from tools.gallery.rewriting import Rewritten
from tools.gallery.training import ROUNDS, STEPS, Trained

# Training amplifies rounding errors: float32's 6e-8 in a loss may grow by a factor of some thousands in 20 steps.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Shown:
    """The results of one repository. `absent` says why it was not read, `untrained` why it was not trained."""

    repository: Repository
    rewritten: Rewritten | None = None
    trained: Trained | None = None
    absent: str = ""
    untrained: str = ""


def differs(shown: Shown) -> bool:
    """Whether the losses before and after differ by more than rounding explains."""
    return shown.trained is not None and shown.trained.difference > _ROUNDING


def as_markdown(shown: Sequence[Shown]) -> str:
    """Return the page."""
    return "\n\n".join([_head(shown), _table(shown), *(_page_of_one(s) for s in shown)]) + "\n"


def _head(shown: Sequence[Shown]) -> str:
    ran = sum(s.trained is not None for s in shown)
    return f"""# Gallery

Public repositories, each at one commit, rewritten by `autofuse rewrite` and trained before and after in their own
training code: {len(shown)} repositories, {ran} of them trained, on a CPU with Python {platform.python_version()} and
torch {version("torch")}.

This page is written by a command and never by hand:

```sh
python -m tools.gallery CACHE --output docs/gallery.md
```

Each program trains {STEPS} steps, {ROUNDS} times as it was, {ROUNDS} times as it was once more (the A/A control) and
{ROUNDS} times rewritten, interleaved. *Speed* is the time of a step before over the time after, above 1 where the
rewritten program is faster, with its 95 % interval; *control* is the same between two identical programs. *First*
is the relative difference of the first losses, before an optimizer has stepped: what the edits of the model make of
it. *Losses* is the largest of all backward passes; it carries on what an optimizer rounds otherwise, too."""


def _table(shown: Sequence[Shown]) -> str:
    rows = ["| repository | edits | lines | first | losses | speed | control |", f"|{' --- |' * 7}"]
    for s in shown:
        edits = _count_findings(s.rewritten) if s.rewritten else "not read"
        lines = f"-{s.rewritten.removed} +{s.rewritten.added}" if s.rewritten else ""
        t = s.trained
        numbers = ("not trained", "", "", "")
        if t is not None:
            numbers = (f"{t.first:.1e}", f"{t.difference:.1e}", str(t.speed), str(t.again))
        rows.append(f"| [{s.repository.name}]({s.repository.address}) | {edits} | {lines} | {' | '.join(numbers)} |")
    return "\n".join(rows)


def _count_findings(found: Rewritten) -> str:
    written = found.by("unsafe" if found.unsafe else "safe")
    counts = ", ".join(f"{code} {count}" for code, count in sorted(written.items()))
    return f"{counts} (unsafe)" if counts and found.unsafe else counts or "none"


def _page_of_one(shown: Shown) -> str:
    return "\n".join([f"## {shown.repository.name}", "", *_lines(shown)])


def _lines(shown: Shown) -> Iterator[str]:
    yield f"Commit [`{shown.repository.commit[:12]}`]({shown.repository.address}/tree/{shown.repository.commit})."
    if shown.absent:
        yield f"It was not read: {shown.absent}."
    if shown.untrained:
        yield f"It was not trained: {shown.untrained.rstrip('.')}."
    if shown.trained:
        t = shown.trained
        middle = len(t.before) // 2
        yield (
            f"A step took {t.step_seconds * 1000:.0f} ms before. Losses at the first, the middle and the last step: "
            f"{_losses(t.before, middle)} before, {_losses(t.after, middle)} after."
        )
    if shown.rewritten:
        yield ""
        yield from _findings(shown.rewritten)
        missed = shown.rewritten.missed(shown.repository.by_hand)
        if missed:
            yield ""
            yield "A person would have fused these too, and autofuse did not: " + ", ".join(f"`{m}`" for m in missed)


def _losses(values: Sequence[float], middle: int) -> str:
    return ", ".join(f"{values[i]:.5g}" for i in (0, middle, -1))


def _findings(found: Rewritten) -> Iterator[str]:
    yield "| place | rule | what | why not more |"
    yield "| --- | --- | --- | --- |"
    described = Counter((e.file, e.symbol, e.code, e.status, e.reason) for e in found.edits)
    for (file, symbol, code, status, reason), count in described.items():
        times = f" ({count} times)" if count > 1 else ""
        why = reason.replace("|", r"\|")
        yield f"| `{file}` {symbol} | {code} | {status}{times} | {why} |"


def as_json(shown: Sequence[Shown]) -> str:
    """Return repositories, findings, losses and ratios."""
    return json.dumps({"version": 1, "repositories": [asdict(s) for s in shown]}, indent=2)
