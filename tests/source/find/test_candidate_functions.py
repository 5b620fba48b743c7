"""The search for words changes no finding: files are read with it, and again with every function as a candidate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from autofuse.loading.examples import example_source
from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.find import check
from autofuse.source.find.candidate_functions import CandidateFunctions
from autofuse.source.find.word_hints import WordHints
from tests.adversary_text.tables import every_program

RULES = load_rules()
SPELLINGS = sorted((Path(__file__).parents[2] / "spellings").glob("*.py"))
BY_DAY = ("softmax.py", "lookalikes_rotary.py")


@contextmanager
def no_search() -> Iterator[None]:
    """Makes every function of every file that imports torch a candidate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WordHints, "possible_in", lambda self, text, others: self)
        patch.setattr(WordHints, "search", lambda self, text: True)
        patch.setattr(CandidateFunctions, "may_match", lambda self, function: True)
        yield


def findings(text: str, path: str = "") -> list[Finding]:
    try:
        return [p.finding for p in check.proposals(text.encode(), path, rules=RULES, skipped=[])]
    except SyntaxError:
        return []


def assert_same_findings(text: str, path: str = "") -> int:
    found = findings(text, path)
    with no_search():
        assert findings(text, path) == found
    return len(found)


def test_examples_of_rules_have_the_same_findings() -> None:
    assert sum(assert_same_findings(example_source(e)) for r in RULES for e in r.rule.examples) > 50


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.night] * (p.name not in BY_DAY)) for p in SPELLINGS]
)
def test_spellings_have_the_same_findings(path: Path) -> None:
    assert_same_findings(path.read_text())


@pytest.mark.night
def test_adversarial_programs_have_the_same_findings() -> None:
    assert sum(assert_same_findings(p.text) for p in every_program()) > 1_000


@pytest.mark.night
@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_files_of_installed_packages_have_the_same_findings(package: str) -> None:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    files = sorted(p for p in Path(spec.submodule_search_locations[0]).rglob("*.py") if b"torch" in p.read_bytes())
    for path in random.Random(0).sample(files, 60):
        assert_same_findings(path.read_text(), str(path))
