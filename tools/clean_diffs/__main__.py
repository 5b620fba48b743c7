"""`python -m tools.clean_diffs PATHS`: rewrites files in memory, and counts the faults of the changes, by class.

`--list FILE` names the files to rewrite; PATHS then only name the files of the project. `--keep DIR` writes each
changed file before and after. `--show CLASS` prints the diffs of the functions with that fault. `--unsafe` also makes
unsafe edits. The maximum line length is configured by the file's project; otherwise it is the file's own.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from autofuse.display.findings import diff_of
from tools.clean_diffs.changed import ChangedFunction, changed_functions
from tools.clean_diffs.faults import faults_of, faults_of_file
from tools.clean_diffs.rewriting import RewrittenFile, rewritten_files


def main() -> int:
    options = _options()
    counts: Counter[str] = Counter()
    functions, clean, files, shown = 0, 0, 0, list[str]()
    for file in _files(options):
        files += 1
        of_file = faults_of_file(file)
        counts.update(of_file)
        changed = list(changed_functions(file))
        for function in changed:
            found = faults_of(function)
            functions, clean = functions + 1, clean + (not found)
            counts.update(found)
            if options.show in found or options.show == "all":
                shown.append(_diff_text(function, found))
        if options.show in of_file:
            shown.append(f"## {file.path}: {', '.join(of_file)}\n")
    sys.stdout.write("\n".join(shown))
    print(f"{files} changed files, {functions} changed functions, {clean} without a fault")
    for name, count in counts.most_common():
        print(f"{count:6} {name}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("tools.clean_diffs", description=__doc__)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--list", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--kept", type=Path, help="count the faults in a folder that --keep wrote, without rewriting")
    parser.add_argument("--show", default="")
    parser.add_argument("--unsafe", action="store_true")
    parser.add_argument("--alone", action="store_true", help="look for evidence only in the edited files")
    return parser.parse_args()


def _files(options: argparse.Namespace) -> Iterator[RewrittenFile]:
    if options.kept:
        for before in sorted(options.kept.rglob("*.before")):
            path = str(before.relative_to(options.kept)).removesuffix(".before")
            messages = before.with_suffix(".messages").read_text().splitlines()
            yield RewrittenFile(path, before.read_bytes(), before.with_suffix(".after").read_bytes(), tuple(messages))
        return
    wanted = options.list.read_text().split("\n") if options.list else ()
    for file in rewritten_files(options.paths, frozenset(filter(None, wanted)), options.unsafe, options.alone):
        if options.keep:
            kept = options.keep / file.path.lstrip("/")
            kept.parent.mkdir(parents=True, exist_ok=True)
            for suffix, content in (("before", file.before), ("after", file.after)):
                kept.with_name(f"{kept.name}.{suffix}").write_bytes(content)
            kept.with_name(f"{kept.name}.messages").write_text("\n".join(file.messages))
        yield file


def _diff_text(function: ChangedFunction, found: Counter[str]) -> str:
    name = f"{function.path}:{function.name}"
    diff = "".join(text for text, _ in diff_of(name, function.before.encode(), function.after.encode()))
    return f"## {name}: {', '.join(sorted(found))}\n{diff}"


if __name__ == "__main__":
    sys.exit(main())
