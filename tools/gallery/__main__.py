"""Rewrites public repositories, trains each before and after with its own training code, and writes docs/gallery.md.

    python -m tools.gallery CACHE                             all repositories of repositories.toml
    python -m tools.gallery CACHE --only karpathy/minGPT
    python -m tools.gallery CACHE --mirrors DIR               clone bare copies OWNER+NAME/repo instead of GitHub
    python -m tools.gallery CACHE --output docs/gallery.md --json gallery.json

If a repository cannot be fetched or its program does not run on this machine, the page names it with the reason, and
the run continues. Exits with 1 if losses differ by more than rounding explains.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tools.gallery.page import Shown, as_json, as_markdown, differs
from tools.gallery.repository import Repository, Unavailable, all_repositories, copy_repository, prepare_tree
from tools.gallery.rewriting import rewrite_repository
from tools.gallery.training import ROUNDS, STEPS, train_both

DOCS = Path(__file__).parents[2] / "docs" / "gallery.md"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    rows = all_repositories()
    if options.only and (unknown := set(options.only) - {r.name for r in rows}):
        print(f"No repository is called {', '.join(sorted(unknown))}. Listed: {', '.join(r.name for r in rows)}.")
        return 2
    chosen = [r for r in rows if not options.only or r.name in options.only]
    shown: list[Shown] = []
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        for repository in progress.track(chosen, description="repositories"):
            shown.append(_show(repository, options))
    text = as_markdown(shown)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    if options.json:
        options.json.write_text(as_json(shown))
    return 1 if any(differs(s) for s in shown) else 0


def _show(repository: Repository, options: argparse.Namespace) -> Shown:
    try:
        after = copy_repository(repository, options.cache, options.mirrors)
        edits = rewrite_repository(repository, after)
    except Unavailable as reason:
        return Shown(repository, absent=str(reason))
    if repository.untrained or not (edits.added or edits.removed):
        return Shown(repository, edits, untrained=repository.untrained or "nothing was rewritten")
    try:
        kept = _rename(after, "after")
        before = _rename(copy_repository(repository, options.cache, options.mirrors), "before")
        for tree in (before, kept):
            prepare_tree(repository, tree)
        return Shown(repository, edits, train_both(repository, before, kept, options.steps, options.rounds))
    except Unavailable as reason:
        return Shown(repository, edits, untrained=str(reason))


def _rename(tree: Path, name: str) -> Path:
    """Rename a folder, and replace the folder of an earlier run."""
    shutil.rmtree(tree.with_name(name), ignore_errors=True)
    return tree.rename(tree.with_name(name))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.gallery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path, metavar="CACHE", help="where the repositories are kept")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these repositories")
    parser.add_argument("--mirrors", type=Path, metavar="DIR", help="bare copies, OWNER+NAME/repo, instead of GitHub")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps of each run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each program")
    parser.add_argument("--output", type=Path, help="write the page to this file, such as docs/gallery.md")
    parser.add_argument("--json", type=Path, help="write all measurements to this file, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
