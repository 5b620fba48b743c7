"""The kinds of files that `autofuse profile --export` writes. It imports nothing, so that commands start quickly."""

from __future__ import annotations

FILE_NAMES = {
    "speedscope": "profile.speedscope.json",
    "stacks": "stacks.txt",
    "layers": "layers.csv",
    "kernels": "kernels.csv",
    "perfetto": "trace.autofuse.json.gz",
    "junit": "junit.xml",
    "github": "summary.md",
}
EXPORT_KINDS = tuple(FILE_NAMES)
