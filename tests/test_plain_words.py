"""Text for people uses the field's words: a list of phrases that readers stumbled over, and of names that say nothing.

`EDITED` lists the folders, and the patterns of files, that have been edited so far. It grows until it holds the whole
repository.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
EDITED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "autofuse",
    "benchmarks",
    "docs",
    "editors",
    "examples",
    "rules",
    "tests/adversary",
    "tests/adversary_text",
    "tests/benchmarks",
    "tests/canonical",
    "tests/cli",
    "tests/conftest.py",
    "tests/demo",
    "tests/display",
    "tests/editors",
    "tests/examples",
    "tests/first_contact",
    "tests/fx",
    "tests/integrations",
    "tests/ir",
    "tests/kernels",
    "tests/loading",
    "tests/match",
    "tests/measure",
    "tests/metamorphic",
    "tests/monitoring",
    "tests/ops",
    "tests/profiling",
    "tests/project",
    "tests/reasons",
    "tests/results",
    "tests/rules",
    "tests/selection.py",
    "tests/source",
    "tests/spellings",
    "tests/test_boundary.py",
    "tests/test_cli.py",
    "tests/test_docs.py",
    "tests/test_entry_points_agree.py",
    "tests/test_hook.py",
    "tests/test_init.py",
    "tests/test_layers.py",
    "tests/test_names.py",
    "tests/test_operations_in_one_place.py",
    "tests/test_packaging.py",
    "tests/test_planning.py",
    "tests/test_rules_of_ones_own.py",
    "tests/test_selection.py",
    "tests/test_spellings_live.py",
    "tests/test_spellings_text.py",
    "tests/test_style.py",
    "tests/test_writing_rules.py",
    "tests/tools",
    "tests/torch_private",
    "tests/verify",
    "tools",
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
    r"\brungs?\b(?!\.py)": "level",
    r"\bare told\b|\bis told\b|\btells? of\b": "reports, is reported",
    r"\bfor the sake of\b": "for",
    r"\bbeside it\b": "next to it",
    r"\bwithout a word\b": "silently",
    r"\btoo much to tell\b": "too noisy to decide",
    r"\bspelled out\b": "hand-written",
    r"(?:^|[.!?] )Knows (?:no|nothing|what|how|which|only)\b": "This file knows ...",
    r"\bproducts? of matrices\b": "matrix product",
    r"\bas (?:it|they) stands?\b": "unchanged",
    r"\b(?:stands?|stood) (?:beside|there)\b": "is next to, is at",
    r"\b(?:is|are) taken (?:off|out)\b": "is removed",
    r"\b(?:masked|dropped) out whole\b": "masked out entirely",
    r"\btaken for granted\b": "assumed",
    r"\bnow and then\b": "sometimes",
    r"\b(?:is|are) let go\b": "is set to None, is removed",
    r"\bsays? nothing of\b": "does not depend on",
    r"\bthe others go on\b": "the run continues",
    r"\bnone of our business\b": "is ignored",
    r"\bgives? way\b": "is replaced by",
    r"\b(?:is|are) taken (?:to be|for)\b": "counts as, autofuse assumes",
    r"\bturn(?:s|ing)? the other way\b": "the inverse rotation",
    r"\b(?:lies?|lay) (?:beside|behind|side by side|next to each other)\b": "is contiguous, is next to",
    r"\bbe it\b": "whether ... or",
    r"\bas good as (?:none|absent)\b": "counts as missing",
    r"\bgoes by\b": "uses, depends on",
    r"\ball else\b": "everything else",
    r"\bfor lack of\b": "because ... is missing",
    r"\bin one go\b": "at once, in one kernel",
    r"\bin turns\b": "interleaved, one after the other",
    r"\btakes? no part\b": "is excluded",
    r"\bwho is best\b": "which is the best",
    r"\bin silence\b": "silently",
    r"\b[Mm]ust not know\b": "does not depend on",
    r"\b[Ww]hoever\b": "the program, the caller, the user who ...",
    r"(?:; |\. )None where\b": "None if",
    r"\bwhat (?:was|is|were) made of\b": "a noun",
    r"\btaken back\b": "rolled back",
    r"\bspeaks? of\b": "is about, names",
    r"\bthe lack of one\b": "a full sentence",
    r"\bfor who\b": "for code that ...",
    r"\b(?:[Ss]ome|[Nn]o)body (?:reads?|writes?|sees?|waits?|watche[sd]|replaced|asks?)\b": "the passive voice",
    r"\b(?:[Ww]hence|[Tt]hereof|[Tt]hereby|[Ll]est|[Ff]orthwith|[Hh]enceforth|[Nn]ought|[Ee]re)\b": "today's word",
    r"\bbut for (?!the (?:first|last))": "except for, apart from",
    r"\bin the place of\b": "instead of, in place of",
    r"\b(?:is|are) to be \w+ed\b": "must be, should be; or an instruction",
    r"\bmore than to \w+": "more than compute, more than read",
    r"\bwhich so\b": "so that it",
    r"\bfor that the\b": "so that the, because the",
    r"\b(?:is|are) heard of\b|\b(?:ha[sd]|have) heard of\b": "is known",
    r"\b(?:ha[sd]|have) a say\b": "decides, counts",
    r"\bin vain\b": "without a result",
    r"\b(?:is|are) no question\b": "needs no check",
    r"\bsays? so little\b|\bso says? the\b": "a full sentence",
    r"\bwhere it surely\b": "if it certainly",
    r"\bput (?:in|into) words\b|\bin so many words\b": "described, as text",
    r"\bcome what may\b|\bat all events\b": "in any case",
    r"\bmade good\b|\bmakes? good\b": "corrected",
}  # fmt: skip
# The same for names of functions, tests included.
NAME_PHRASES = {
    r"(?<!there)_is_no_(?!longer)": "is_not_a",
    r"_(?:is|are|was)_told(?:_|$)": "is_reported, is_distinguished",
    r"_told_apart": "distinguished",
    r"_(?:somebody|nobody|whoever)_": "a noun, or the passive voice",
    r"^test_(?:what|who|whoever)_(?:is|was|cannot|does|has)_": "a noun",
    r"_(?:anew|amid|beside)(?:_|$)": "again, during, next_to",
    r"_(?:goes|go|went)_on(?:_|$)": "continues",
    r"_as_it_(?:was|is)$": "unchanged",
    r"_asked_for(?:_|$)": "requested",
    r"_ones_own(?:_|$)": "a_custom_...",
    r"_heard_of(?:_|$)": "known",
    r"_(?:handed|hands?)_on(?:_|$)": "passed",
    r"_(?:is|are)_that_of_(?:a|an|the)$|_is_it_(?:a|an|the)$": "a noun at the end",
    r"^test_(?:nor|so|but|yet)_": "a full sentence",
    r"_(?:whence|thereof|lest|nought)(?:_|$)": "today's word",
}
NAMES = frozenset(
    "told made whole given anew less shown reached found said had gone kept held named asked known seen taken "
    "turned handed undisturbed undropped abroad amid doomed tested fetched looked scored pinned downloaded "
    "unpacked cloned merged straightened unshifted undone unpermuted indexed stripped executed launched folded "
    "raced ranked listed noted restored shifted mixed drawn rehearsed weighed imported decided described reduced "
    "ignored packaged prepared refused normed picked repeated widened traced transformed remembered accepted added "
    "allowed attributed bootstrapped clipped closed compared created declined deleted digested escaped evaluated "
    "excluded exported filled finished followed formatted freed guarded hashed headed inserted joined judged "
    "labelled limited logged matched measured narrowed numbered opened ordered packed paired passed patched "
    "pickled planned printed quoted raised received rejected released required resolved reversed sampled sent "
    "shortened skipped sorted spoken stacked started swapped timed trimmed uncalled unwrapped waited wanted warned "
    "anyhow apart beside elsewhere nowhere somewhere together".split()
)
QUESTIONS = ("Why ", "What ", "Which ", "Where ", "How ", "Who ", "When ")
DEFINITION = re.compile(r"^ *(?:async )?def (\w+)", re.MULTILINE)
# Finds every phrase, and more. Most files have none, and need not be split into comments and strings.
ANY_PHRASE = re.compile("|".join(phrase.replace("(?:^|[.!?] )", "") for phrase in PHRASES))
PUBLIC_NAMES = frozenset({"given"})  # autofuse.rule.Call.given, which rules call


@cache
def pages() -> list[Path]:
    found = [p for part in EDITED for p in (REPOSITORY.glob(part) if "." in part else (REPOSITORY / part).rglob("*"))]
    return sorted(p for p in found if p.suffix in (".md", ".py"))


@cache
def pages_by_folder() -> dict[Path, list[Path]]:
    return {folder: list(found) for folder, found in groupby(sorted(pages(), key=parent), key=parent)}


def parent(path: Path) -> Path:
    return path.parent


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Paragraphs of a page; comments and strings of a module. With the line at which each begins."""
    if path.suffix == ".md":
        yield from paragraphs(re.sub(r"`[^`\n]*`", "``", path.read_text()))
        return
    with io.BytesIO(path.read_bytes()) as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:  # one word is a key
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


FOLDERS = sorted(pages_by_folder())
of_each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(REPOSITORY)))


@of_each_folder
def test_a_text_has_no_rejected_phrase(folder: Path) -> None:
    stumbles = [
        f"{path.relative_to(REPOSITORY)}:{line}: {found[0]!r}, write: {better}"
        for path in pages_by_folder()[folder]
        if ANY_PHRASE.search(" ".join(path.read_text().split()))
        for line, text in texts(path)
        for phrase, better in PHRASES.items()
        if (found := re.search(phrase, text))
    ]
    assert stumbles == []


@of_each_folder
def test_a_function_is_not_named_by_a_participle_alone(folder: Path) -> None:
    def is_participle(name: str) -> bool:
        return name.strip("_") in NAMES and name not in PUBLIC_NAMES

    assert list(functions_in(folder, is_participle)) == []


@of_each_folder
def test_a_functions_name_has_no_rejected_phrase(folder: Path) -> None:
    for phrase, better in NAME_PHRASES.items():
        assert list(functions_in(folder, re.compile(phrase).search)) == [], f"write: {better}"


def functions_in(folder: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    """The place and name of each function with a wanted name in the Python files of a folder, without those below."""
    for path in (p for p in pages_by_folder()[folder] if p.suffix == ".py"):
        if any(map(wanted, defined_names(path))):  # strings may hold definitions too
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and wanted(node.name):
                    yield f"{path.name}:{node.lineno}", node.name


@cache
def defined_names(path: Path) -> list[str]:
    return DEFINITION.findall(path.read_text())


@of_each_folder
def test_a_docstring_does_not_begin_like_a_question(folder: Path) -> None:
    """`The reason why a site is declined`, not `Why a site is declined`. A question mark makes it a question."""
    found = [
        f"{path.name}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for path in pages_by_folder()[folder]
        if path.suffix == ".py" and "tests" not in path.relative_to(REPOSITORY).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node) or "").startswith(QUESTIONS)
        and "?" not in text.splitlines()[0]
    ]
    assert found == []


def test_a_phrase_is_found() -> None:
    assert any(re.search(phrase, "It is read. Nor is a policy that there is not.") for phrase in PHRASES)


def test_a_phrase_in_a_name_is_found() -> None:
    assert any(re.search(phrase, "test_what_is_no_trace_is_told") for phrase in NAME_PHRASES)
