"""Builds the release and checks everything that can be checked before it is published.

    python -m tools.release --output dist              build into dist/, and check
    python -m tools.release --tag v0.1.0               also check that the tag is the version

It needs `build` and `twine`. It checks that the tree is committed, that the version is the same in pyproject.toml,
CITATION.cff and CHANGELOG.md, that two builds are equal byte for byte, what the sdist and the wheel contain, and that
`twine check` passes. It exits with 1 if a check fails, and publishes nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.release.building import BuildFailed, build, check_with_twine
from tools.release.contents import find_problems_in_sdist, find_problems_in_wheel
from tools.release.versions import find_version_problems, uncommitted_files

REPOSITORY = Path(__file__).parents[2]


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        output = options.output or Path(folder) / "dist"
        failed = False
        for name, check in _checks(output, Path(folder) / "again", options.tag):
            try:
                problems = list(check())
            except BuildFailed as error:
                problems = [str(error)]
            print(f"{'failed' if problems else 'ok    '}  {name}")
            for problem in problems:
                print(f"        {problem}")
            failed = failed or bool(problems)
    return 1 if failed else 0


def _checks(output: Path, again: Path, tag: str) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """The checks in order, with their names. Later ones need the files that earlier ones build."""
    yield "everything is committed", lambda: uncommitted_files(REPOSITORY)
    yield "one version everywhere", lambda: find_version_problems(REPOSITORY, tag)
    yield "two builds are equal", lambda: _differences(build(REPOSITORY, output), build(REPOSITORY, again))
    yield "contents of the wheel", lambda: find_problems_in_wheel(next(output.glob("*.whl")), REPOSITORY)
    yield "contents of the sdist", lambda: find_problems_in_sdist(next(output.glob("*.tar.gz")))
    yield "twine check", lambda: check_with_twine(output)


def _differences(first: dict[str, str], second: dict[str, str]) -> list[str]:
    """The files that differ between two builds, by their hashes."""
    return [f"{name} differs" for name in sorted({*first, *second}) if first.get(name) != second.get(name)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="the folder for the files; otherwise they are removed again")
    parser.add_argument("--tag", default="", help="the tag of the release, such as v0.1.0")
    return parser


if __name__ == "__main__":
    sys.exit(main())
