"""Rewrites public repositories, trains each before and after in its own training code, and keeps docs/gallery.md.

    python -m tools.gallery CACHE                             all of repositories.toml, fetched into CACHE
    python -m tools.gallery CACHE --only karpathy/minGPT
    python -m tools.gallery CACHE --mirrors DIR               bare copies, OWNER+NAME/repo, are asked before GitHub
    python -m tools.gallery CACHE --output docs/gallery.md --json gallery.json

A repository that cannot be fetched, or whose program does not run on this machine, is named with the reason, and the
others go on. Exits with 1 where losses differ by more than rounding explains.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tools.gallery.page import Shown, as_json, as_markdown, differs
from tools.gallery.repository import Repository, Unavailable, copied, listed, made_ready
from tools.gallery.rewriting import rewritten
from tools.gallery.training import ROUNDS, STEPS, trained

DOCS = Path(__file__).parents[2] / "docs" / "gallery.md"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    rows = listed()
    if options.only and (unknown := set(options.only) - {r.name for r in rows}):
        print(f"No repository is called {', '.join(sorted(unknown))}. Listed: {', '.join(r.name for r in rows)}.")
        return 2
    chosen = [r for r in rows if not options.only or r.name in options.only]
    shown: list[Shown] = []
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        for repository in progress.track(chosen, description="repositories"):
            shown.append(_shown(repository, options))
    text = as_markdown(shown)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    if options.json:
        options.json.write_text(as_json(shown))
    return 1 if any(differs(s) for s in shown) else 0


def _shown(repository: Repository, options: argparse.Namespace) -> Shown:
    try:
        after = copied(repository, options.cache, options.mirrors)
        edits = rewritten(repository, after)
    except Unavailable as reason:
        return Shown(repository, absent=str(reason))
    if repository.untrained or not (edits.added or edits.removed):
        return Shown(repository, edits, untrained=repository.untrained or "nothing was rewritten")
    try:
        kept = _moved(after, "after")
        before = _moved(copied(repository, options.cache, options.mirrors), "before")
        for tree in (before, kept):
            made_ready(repository, tree)
        return Shown(repository, edits, trained(repository, before, kept, options.steps, options.rounds))
    except Unavailable as reason:
        return Shown(repository, edits, untrained=str(reason))


def _moved(tree: Path, name: str) -> Path:
    """The folder under another name, instead of one that an earlier run left there."""
    shutil.rmtree(tree.with_name(name), ignore_errors=True)
    return tree.rename(tree.with_name(name))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.gallery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path, metavar="CACHE", help="where the repositories are kept")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these repositories")
    parser.add_argument("--mirrors", type=Path, metavar="DIR", help="bare copies, OWNER+NAME/repo, instead of GitHub")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps of each run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each program")
    parser.add_argument("--output", type=Path, help="the page; docs/gallery.md is kept by this")
    parser.add_argument("--json", type=Path, help="all that was measured, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
