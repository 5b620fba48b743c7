"""Writes the results as Markdown and as JSON, without dates and paths, so that only results change them."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from autofuse.loading.registry import load_rules
from autofuse.results.distribution import own_version
from autofuse.results.findings import Finding
from tools.ecosystem.rewriting import Looked
from tools.ecosystem.running import Ran
from tools.ecosystem.sources import Tree
from tools.ecosystem.truth import Scores

_STATUSES = ("safe", "unsafe", "report", "declined")
_MOST = 24  # the number of listed reasons


@dataclass(frozen=True)
class Package:
    """One tree and the results of its files. `ran` is None if nothing was run."""

    tree: Tree
    looked: tuple[Looked, ...]
    ran: tuple[Ran, ...] | None = None

    @property
    def findings(self) -> list[Finding]:
        return [f for looked in self.looked for f in looked.findings]

    def place(self, looked: Looked) -> str:
        return f"{self.tree.title}: {looked.file.relative_to(self.tree.root)}"


def broken(packages: Iterable[Package]) -> Iterator[str]:
    """Yield a sentence for every broken promise."""
    for p in packages:
        yield from (f"{p.place(looked)}: {sentence}" for looked in p.looked for sentence in looked.broken)
        yield from (f"{p.tree.title}: {r.module}.{r.symbol}: {r.why}" for r in p.ran or () if r.outcome == "different")


def as_markdown(packages: Sequence[Package], labels: Scores | None) -> str:
    """Return the summary."""
    parts = [_head(packages), _promises(packages), _by_rule(packages), _reasons(packages)]
    if any(p.ran is not None for p in packages):
        parts.append(_runs(packages))
    if labels is not None:
        parts.append(_labels(labels))
    parts.append(_by_package(packages))
    return "\n\n".join(parts) + "\n"


def _head(packages: Sequence[Package]) -> str:
    files = sum(len(p.looked) for p in packages)
    python = platform.python_version().rpartition(".")[0]
    lines = (
        "# The ecosystem run\n",
        f"autofuse {own_version()} over {len(packages)} public packages, each at one version, {files:,} files,",
        f"with unsafe edits included, on Python {python}.\n",
        "A command writes this page. It has no date, so that only results change it.\n",
        "```sh\npython -m tools.ecosystem CACHE --run --output docs/ecosystem.md\n```\n",
        "`--only NAME ...` takes some of the packages of `tools/ecosystem/packages.toml`; `--help` tells what else it",
        "takes: installed packages, folders, a file of labelled places.",
    )
    return "\n".join(lines)


def _promises(packages: Sequence[Package]) -> str:
    looked = [x for p in packages for x in p.looked]
    rewritten = [x for x in looked if x.after is not None]
    sentences = Counter(_kind(s) for x in looked for s in x.broken)
    rows = [
        ("files read", len(looked)),
        ("files that are no Python of this version", sum(bool(x.unread) for x in looked)),
        ("files rewritten", len(rewritten)),
        ("edits made", sum(x.edits for x in looked)),
        ("edits that could not be made", sum(len(x.refused) for x in looked)),
        ("crashes", sentences["crash"]),
        ("rewritten files that do not compile", sentences["compile"]),
        ("rewritten files that lost a comment", sentences["comment"]),
        ("rewritten files that a second run changes", sentences["second"]),
    ]
    return "## What is promised\n\n" + _table(("", "number"), rows)


def _kind(sentence: str) -> str:
    words = {"compile": "compile", "comments": "comment", "second run": "second"}
    return next((kind for word, kind in words.items() if word in sentence), "crash")


def _by_rule(packages: Sequence[Package]) -> str:
    counts = Counter((f.code, f.rule, f.status) for p in packages for f in p.findings)
    rules = [loaded.rule for loaded in load_rules()]
    rows = [(f"{r.code} {r.__name__}", *(counts[r.code, r.__name__, s] for s in _STATUSES)) for r in rules]
    return "## By rule\n\n" + _table(("rule", *_STATUSES), rows)


def _reasons(packages: Sequence[Package]) -> str:
    """The reasons why sites are declined or only reported, without names of the program."""
    plain = (re.sub(r"`[^`]*`|\(line \d+\)", "…", f.reason) for p in packages for f in p.findings if _is_refused(f))
    reasons = Counter(re.sub(r"\s+", " ", text).strip() for text in plain)
    rows = _sort_counts(reasons)[:_MOST]
    return f"## Why places are left alone\n\nThe {len(rows)} most frequent reasons.\n\n" + _table(
        ("reason", "places"), rows
    )


def _sort_counts(counts: Counter[str]) -> list[tuple[str, int]]:
    """Sort by frequency, then by name."""
    return sorted(counts.items(), key=lambda c: (-c[1], c[0]))


def _is_refused(f: Finding) -> bool:
    return f.status in ("report", "declined") and bool(f.reason)


def _runs(packages: Sequence[Package]) -> str:
    runs = [r for p in packages for r in p.ran or ()]
    counts = Counter(r.outcome for r in runs)
    lines = (
        "## Before and after\n",
        "What holds a rewritten function (its class, or the function itself) is built with small values guessed from",
        "the names of its arguments, and called in float64, before and after, in training and evaluation: outputs and",
        "all gradients must agree to rounding.",
        f"Of {len(runs)}, {counts['equal']} agree, **{counts['different']} differ**, and {counts['not run']}",
        "could not be run.\n",
    )
    kinds = Counter(
        re.split(r"[:(]", r.why.replace("could not be imported: ", "import: ", 1))[0]
        for r in runs
        if r.outcome == "not run"
    )
    return "\n".join((*lines, _table(("why not run", "number"), _sort_counts(kinds))))


def _labels(labels: Scores) -> str:
    columns = ("to fuse", "fixed", "seen", "not to fuse", "wrong", "absent")
    rows = [(kind, grade, *(row[c] for c in columns)) for (kind, grade), row in labels.items()]
    return "## Labelled places\n\n" + _table(("kind", "grade", *columns), rows)


def _by_package(packages: Sequence[Package]) -> str:
    rows = []
    for p in sorted(packages, key=lambda p: p.tree.title.lower()):
        counts = Counter(f.status for f in p.findings)
        outcomes = Counter(r.outcome for r in p.ran) if p.ran is not None else None
        runs = (outcomes["equal"], outcomes["different"], outcomes["not run"]) if outcomes is not None else ("", "", "")
        rows.append((p.tree.title, len(p.looked), *(counts[s] for s in _STATUSES), *runs))
    return "## By package\n\n" + _table(("package", "files", *_STATUSES, "equal", "different", "not run"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [" | ".join(head), " | ".join("---:" if i else "---" for i in range(len(head)))]
    lines += [" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def as_json(packages: Sequence[Package], labels: Scores | None) -> str:
    """Return all findings and runs."""
    data = [
        {
            "package": p.tree.title,
            "files": [_file(p, x) for x in p.looked if x.findings or x.broken or x.unread],
            "runs": [asdict(r) for r in p.ran] if p.ran is not None else None,
        }
        for p in packages
    ]
    scores = [{"kind": kind, "grade": grade, **row} for (kind, grade), row in labels.items()] if labels else None
    return json.dumps({"version": 1, "packages": data, "labels": scores}, indent=1) + "\n"


def _file(p: Package, looked: Looked) -> dict[str, object]:
    path = str(looked.file.relative_to(p.tree.root))
    findings = [{**asdict(f), "path": path} for f in looked.findings]
    return {
        "path": path,
        "edits": looked.edits,
        "broken": looked.broken,
        "unread": bool(looked.unread),
        "findings": findings,
    }
