"""Text for people uses the field's words: a list of phrases that readers stumbled over, and of names that say nothing.

`EDITED` lists what has been edited so far. It grows until it holds the whole repository.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
EDITED = (
    "CONTRIBUTING.md",
    "README.md",
    "autofuse/cli",
    "autofuse/demo",
    "autofuse/display",
    "autofuse/fx/install",
    "autofuse/fx/lazy",
    "autofuse/integrations",
    "autofuse/loading",
    "autofuse/measure",
    "autofuse/profiling/live",
    "autofuse/profiling/peaks.py",
    "autofuse/profiling/trace",
    "autofuse/project",
    "autofuse/reasons",
    "autofuse/results",
    "autofuse/source",
    "autofuse/verify",
    "docs/architecture.md",
    "docs/cli.md",
    "docs/configuration.md",
    "docs/decisions",
    "docs/distributed.md",
    "docs/editors.md",
    "docs/glossary.md",
    "docs/integrations.md",
    "docs/json.md",
    "docs/kernels.md",
    "docs/limits.md",
    "docs/measuring.md",
    "docs/profiling.md",
    "docs/rules.md",
    "docs/safety.md",
    "docs/soundness.md",
    "docs/training.md",
    "docs/writing-rules.md",
    "tests/cli",
    "tests/demo",
    "tests/display",
    "tests/loading",
    "tests/measure",
    "tests/project",
    "tests/results",
    "tests/source/capture",
)

# A regular expression, and what to write in its place.
PHRASES = {
    r"\bthat there (?:is|are) not\b": "unknown ..., no such ...",
    r"\banew\b": "again",
    r"\bamid(?:st)?\b": "during",
    r"\bcomes? to lie\b": "is, is placed",
    r"\bis not to be had\b": "is not available",
    r"\bhanded on\b": "passed on",
    r"\bwhat (?:is|are) about\b": "a noun",
    r"\bof them all\b": "all",
    r"\bof whom\b|\bto whom\b": "a sentence of its own",
    r"(?:^|[.!?] )Who \w+s\b": "If you ...",
    r"(?:^|[.!?] )Nor \w+": "... not",
    r"(?:^|[.!?] )So (?:do|does|did|is|are|has|have) (?!not\b)\w+": "subject before verb",
    r"(?:^|[.!?] )Not (?:so|where|if)\b": "a full sentence",
    r"\b(?:live|text|other) door\b": "the FX pass, the codemod",
    r"\brungs?\b": "level",
    r"\bare told\b|\bis told\b|\btells? of\b": "reports, is reported",
    r"\bfor the sake of\b": "for",
    r"\bbeside it\b": "next to it",
    r"\bwithout a word\b": "silently",
    r"\btoo much to tell\b": "too noisy to decide",
}  # fmt: skip
NAMES = frozenset(
    "told made whole given anew less shown reached found said had gone kept held named asked known seen taken turned "
    "handed undisturbed undropped abroad amid".split()
)
PUBLIC_NAMES = frozenset({"given"})  # autofuse.rule.Call.given, which rules call


def pages() -> list[Path]:
    found = [p for part in EDITED for p in ([REPOSITORY / part] if "." in part else (REPOSITORY / part).rglob("*"))]
    return sorted(p for p in found if p.suffix in (".md", ".py"))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Paragraphs of a page; comments and strings of a module. With the line at which each begins."""
    if path.suffix == ".md":
        yield from paragraphs(re.sub(r"`[^`\n]*`", "``", path.read_text()))
        return
    with io.BytesIO(path.read_bytes()) as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield (
                    token.start[0],
                    re.sub(r"`[^`\n]*`|captured anew", "``", " ".join(token.string.strip("#\"' ").split())),
                )


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    line = 1
    for part in re.split(r"(\n\s*\n|\n(?=- |\d+\. |\|))", text):
        if part.strip():
            yield line, " ".join(part.strip().split())
        line += part.count("\n")


@pytest.mark.parametrize("path", pages(), ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_nothing_has_to_be_read_twice(path: Path) -> None:
    stumbles = [
        f"{path.relative_to(REPOSITORY)}:{line}: {found[0]!r}, write: {better}"
        for line, text in texts(path)
        for phrase, better in PHRASES.items()
        if (found := re.search(phrase, text))
    ]
    assert stumbles == []


@pytest.mark.parametrize(
    "path", [p for p in pages() if p.suffix == ".py"], ids=lambda p: str(p.relative_to(REPOSITORY))
)
def test_a_function_is_not_named_by_a_participle_alone(path: Path) -> None:
    functions = [
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    named = [f for f in functions if f.name.strip("_") in NAMES and f.name not in PUBLIC_NAMES]
    assert [f"{path.name}:{f.lineno}: {f.name}" for f in named] == []


def test_a_phrase_is_found() -> None:
    assert any(re.search(phrase, "It is read. Nor is a policy that there is not.") for phrase in PHRASES)
