"""Runs autofuse over public packages, looks at everything that it writes, and keeps the summary in docs/.

    python -m tools.ecosystem CACHE                      the packages of packages.toml, downloaded into CACHE
    python -m tools.ecosystem CACHE --run                and what was rewritten is run, before and after
    python -m tools.ecosystem CACHE --only timm          some of them
    python -m tools.ecosystem CACHE --installed torch_geometric --folder ~/checkout
    python -m tools.ecosystem CACHE --truth FILE --sources DIR     and a file of labelled places is scored

A package that cannot be imported is said so, and the others go on. Exits with 1 where a promise is not kept: a crash, a
file that does not compile, a lost comment, a second run that changes something, a result that differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tools.ecosystem.rewriting import looked_at
from tools.ecosystem.running import ran
from tools.ecosystem.sources import Tree, Unavailable, downloaded, folders, installed, pinned
from tools.ecosystem.summary import Package, as_json, as_markdown, broken
from tools.ecosystem.truth import scored

DOCS = Path(__file__).parents[2] / "docs" / "ecosystem.md"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    packages: list[Package] = []
    trees = list(_trees(options))
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        for tree in progress.track(trees, description="packages"):
            looked = looked_at(list(tree.files()))
            packages.append(Package(tree, tuple(looked), tuple(ran(tree, looked)) if options.run else None))
    labels = scored(options.truth, options.sources) if options.truth else None
    text = as_markdown(packages, labels)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    if options.json:
        options.json.write_text(as_json(packages, labels))
    for sentence in broken(packages):
        print(sentence, file=sys.stderr)
    return 1 if any(True for _ in broken(packages)) else 0


def _trees(options: argparse.Namespace) -> Iterator[Tree]:
    listed = pinned()
    names = options.only or ([] if options.installed or options.folder else listed)
    for name in names:
        try:
            yield downloaded(name, listed[name], options.cache)
        except Unavailable as reason:
            print(reason, file=sys.stderr)
    for name in options.installed:
        yield installed(name)
    yield from folders(options.folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.ecosystem", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path, help="a folder for downloads; what is there already is used")
    parser.add_argument("--only", nargs="+", choices=sorted(pinned()), metavar="NAME", help="these of the list")
    parser.add_argument("--installed", nargs="+", default=[], metavar="NAME", help="installed packages, by import name")
    parser.add_argument("--folder", nargs="+", default=[], type=Path, metavar="PATH", help="folders of code")
    parser.add_argument("--run", action="store_true", help="run what was rewritten, before and after (needs torch)")
    parser.add_argument("--truth", type=Path, help="a JSON file of labelled places")
    parser.add_argument("--sources", type=Path, help="where their sources are: pypi/NAME==VERSION, gh/OWNER+NAME")
    parser.add_argument("--output", type=Path, help=f"the summary; {DOCS.name} in docs/ is kept by this")
    parser.add_argument("--json", type=Path, help="every finding, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
