"""Rewrites public packages with autofuse, checks everything that it writes, and writes the summary in docs/.

    python -m tools.ecosystem CACHE                      the packages of packages.toml, downloaded into CACHE
    python -m tools.ecosystem CACHE --run                also run the rewritten code, before and after
    python -m tools.ecosystem CACHE --only timm          some packages
    python -m tools.ecosystem CACHE --installed torch_geometric --folder ~/checkout
    python -m tools.ecosystem CACHE --truth FILE --sources DIR     also score a file of labelled places

A package that cannot be imported is reported, and the run continues. Exits with 1 if a promise is broken: a crash, a
file that does not compile, a lost comment, a second run that changes something, a different result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tools.ecosystem.rewriting import check_files
from tools.ecosystem.running import run_both
from tools.ecosystem.sources import Tree, Unavailable, download, folders, installed_package, pinned_versions
from tools.ecosystem.summary import Package, as_json, as_markdown, broken
from tools.ecosystem.truth import score_labels

DOCS = Path(__file__).parents[2] / "docs" / "ecosystem.md"


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    packages: list[Package] = []
    trees = list(_trees(options))
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        for tree in progress.track(trees, description="packages"):
            looked = check_files(list(tree.files()))
            packages.append(Package(tree, tuple(looked), tuple(run_both(tree, looked)) if options.run else None))
    labels = score_labels(options.truth, options.sources) if options.truth else None
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
    listed = pinned_versions()
    names = options.only or ([] if options.installed or options.folder else listed)
    for name in names:
        try:
            yield download(name, listed[name], options.cache)
        except Unavailable as reason:
            print(reason, file=sys.stderr)
    for name in options.installed:
        yield installed_package(name)
    yield from folders(options.folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.ecosystem", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cache", type=Path, help="a folder for downloads, which are used again")
    parser.add_argument("--only", nargs="+", choices=sorted(pinned_versions()), metavar="NAME", help="only these")
    parser.add_argument("--installed", nargs="+", default=[], metavar="NAME", help="installed packages, by import name")
    parser.add_argument("--folder", nargs="+", default=[], type=Path, metavar="PATH", help="folders of code")
    parser.add_argument("--run", action="store_true", help="run rewritten code, before and after (needs torch)")
    parser.add_argument("--truth", type=Path, help="a JSON file of labelled places")
    parser.add_argument("--sources", type=Path, help="where their sources are: pypi/NAME==VERSION, gh/OWNER+NAME")
    parser.add_argument("--output", type=Path, help=f"write the summary to this file, such as docs/{DOCS.name}")
    parser.add_argument("--json", type=Path, help="write every finding to this file, as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
