"""Lists every message that a user can meet: `python -m tools.messages [--kind KIND] [--format json]`.

Messages are read from the code, so the list cannot fall behind:

- `reason`: why a site is not fused, by code, with its advice (autofuse/reasons/);
- `assumption`: what an unsafe edit assumes (rules/, autofuse/source/evidence/);
- `error`: the text of an exception;
- `command`: what a command prints on standard error;
- `log`: a warning, or a message of the logger `autofuse`.

`{...}` stands for a value that is known when the message is shown.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from autofuse.reasons.table import GROUPS, codes_of

REPOSITORY = Path(__file__).parents[1]
KINDS = ("reason", "assumption", "error", "command", "log")
_ASSUMES = frozenset({"Missing", "Holds", "Unknown"})
_LOGS = frozenset({"warning", "info", "error", "warn"})
_SAYS = frozenset({"say", "show_progress"})
_LOGGERS = frozenset({"_LOG", "LOG", "warnings", "logger"})


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: one of `KINDS`.
        code: the reason's code, or the exception's class; "" for other kinds.
        place: the file and line, relative to the repository; "" for a reason.
        text: the message, with `{...}` for values.
        advice: what the user can change; "" if the message has no separate advice.
    """

    kind: str
    code: str
    place: str
    text: str
    advice: str = ""


@cache
def messages(root: Path = REPOSITORY) -> tuple[Message, ...]:
    """All messages of autofuse and its rules, by kind, then by place."""
    found = [*_reasons()]
    for path in sorted([*(root / "autofuse").rglob("*.py"), *(root / "rules").glob("*.py")]):
        found += _messages_of(path, root)
    return tuple(sorted(found, key=lambda m: (KINDS.index(m.kind), m.place, m.code)))


def _reasons() -> Iterator[Message]:
    for group in GROUPS:
        for code in codes_of(group):
            yield Message("reason", code.name, "", code.sentence, code.advice or "")


def _messages_of(path: Path, root: Path) -> Iterator[Message]:
    name_of_file = path.relative_to(root).as_posix()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, (ast.Raise, ast.Call)):
            continue
        place = f"{name_of_file}:{node.lineno}"
        match node:
            case ast.Raise(ast.Call(ast.Name(name), [first, *_])):
                yield from (Message("error", name, place, text) for text in texts(first))
            case ast.Call(ast.Name(name), arguments) if name in _ASSUMES:
                yield from (
                    Message("assumption", "", place, text) for a in arguments for text in texts(a) if " " in text
                )
            case ast.Call(ast.Attribute(ast.Name(owner), name), [first, *_]) if owner in _LOGGERS and name in _LOGS:
                yield from (Message("log", "", place, text) for text in texts(first))
            case ast.Call(ast.Attribute(_, name), [first, *_]) if name in _SAYS and path.parent.name == "cli":
                yield from (Message("command", "", place, text) for text in texts(first) if text)


def texts(tree: ast.expr) -> Iterator[str]:
    """The texts that an expression may be; nothing if the expression is not written as text."""
    match tree:
        case ast.Constant(str(value)):
            yield value
        case ast.JoinedStr(parts):
            yield "".join(_part(p) for p in parts)
        case ast.BinOp(left, ast.Add(), right):
            yield from (a + b for a in texts(left) for b in texts(right))
        case ast.IfExp(_, body, orelse):
            yield from (*texts(body), *texts(orelse))


def _part(tree: ast.expr) -> str:
    match tree:
        case ast.Constant(value):
            return str(value)
        case ast.FormattedValue(value):
            return "{" + ast.unparse(value) + "}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the messages."""
    parser = argparse.ArgumentParser(prog="tools.messages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; may be repeated")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    found = [m for m in messages() if not options.kind or m.kind in options.kind]
    if options.format == "json":
        print(json.dumps({"version": 1, "messages": [asdict(m) for m in found]}, indent=2))
        return 0
    for message in found:
        print(f"{message.kind} {message.code or '-'} {message.place}".rstrip())
        print(f"    {message.text}")
        if message.advice:
            print(f"    advice: {message.advice}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
