"""The kinds of files that `autofuse profile --export` writes. It imports nothing, so that `--help` is quick."""

from __future__ import annotations

FILE_NAMES = {kind: name for kind, (name, _) in _FROM_PROFILE.items()} | {
    "perfetto": "trace.autofuse.json.gz",
    "junit": "junit.xml",
    "github": "summary.md",
}
EXPORT_KINDS = tuple(FILE_NAMES)
