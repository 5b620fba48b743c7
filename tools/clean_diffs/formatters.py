"""Runs formatters on a file before and after, and finds its maximum line length."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from shutil import which

from tools.clean_diffs.rewriting import RewrittenFile

_USUAL = (79, 80, 88, 100, 119, 120)


@lru_cache(maxsize=4096)
def limit_of(file: RewrittenFile) -> int:
    """The maximum line length in characters, as the file's project configures it; else that of the file itself."""
    try:
        from autofuse.source.write.line_length import line_length
    except ImportError:
        text = file.before.decode(errors="replace")
        longest = max((len(line.split("#")[0].rstrip()) for line in text.splitlines()), default=0)
        return next((w for w in _USUAL if longest <= w), 120)
    return line_length(file.before.decode(errors="replace"), Path(file.path))


def unsettled(file: RewrittenFile) -> Iterator[str]:
    """Yield the formatters that would change the file now, and would not have changed it before."""
    for name, command in _commands(limit_of(file)):
        if _settled(command, file.before) and not _settled(command, file.after):
            yield name


def _commands(limit: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    beside = Path(sys.executable).with_name("ruff")
    ruff = str(beside) if beside.exists() else which("ruff")
    if ruff:
        yield "ruff", (ruff, "format", "--isolated", f"--line-length={limit}", "--stdin-filename=x.py", "-")
    black = os.environ.get("BLACK") or which("black")
    if black:
        yield "black", (black, "-q", f"--line-length={limit}", "--stdin-filename=x.py", "-")


def _settled(command: tuple[str, ...], source: bytes) -> bool:
    done = subprocess.run(command, input=source, capture_output=True, check=False, cwd="/")
    return done.returncode == 0 and done.stdout == source
