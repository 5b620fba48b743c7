"""The table of reasons is whole: what the package says is in it, what is in it is said somewhere, and documented."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import autofuse
from autofuse.reasons.reason import Code
from autofuse.reasons.table import GROUPS, TABLE, codes_of
from tests.reasons.test_forwards import NEVER_SEEN
from tests.reasons.test_writing import UNREACHED
from tools.refusals import PAGE, page

PACKAGE = Path(autofuse.__file__).parent
REPOSITORY = PACKAGE.parent
NAMES = {
    f"{group.__name__.rpartition('.')[2]}.{name}": code
    for group in GROUPS
    for name, code in vars(group).items()
    if isinstance(code, Code)
}
MADE_BY = {"because": 1, "_about": 2}  # how many arguments stand before the data
OF_A_VALUE = {"what", "which"}  # added by legality.py to whatever it says of a value
REFUSALS = {"Fails", "Unknown", "Untraceable", "Unwritable", "NotInTarget", "CannotBuild", "refuse"}


def calls_of(names: set[str]) -> Iterator[tuple[str, ast.Call]]:
    """Every call of these functions in the package outside of the table, and where it stands."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if not path.is_relative_to(PACKAGE / "reasons") and any(f"{name}(" in text for name in names):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and called(node) in names:
                    yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", node


def called(call: ast.Call) -> str:
    """The function that is called, without the module it stands in; autofuse.display.units has a `because` too."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return "" if ast.unparse(function) == "units.because" else function.attr
    return function.id if isinstance(function, ast.Name) else ""


def code_given(call: ast.Call) -> str:
    return ast.unparse(call.args[0]) if call.args and isinstance(call.args[0], ast.Attribute) else ""


def fields_of(code: Code) -> set[str]:
    """What the templates of a code want."""
    templates = (code.sentence, code.named, code.advice)
    return {name for t in templates for _, name, _, _ in string.Formatter().parse(t) if name} - {"value"}


MADE = [(where, call) for where, call in calls_of(set(MADE_BY)) if code_given(call)]


def test_every_code_is_given_somewhere_in_the_package() -> None:
    text = {p: p.read_text() for p in PACKAGE.rglob("*.py") if "reasons" not in p.parts}
    used = {name for t in text.values() for found in re.findall(r"\w+\.\w+", t) if (name := found) in NAMES}
    of_rules = {"matches.RULE_DECLINED", "matches.RULE_UNKNOWN"}  # of autofuse/rule.py, which names them without group
    assert set(NAMES) - used == of_rules
    assert all(name.partition(".")[2] in text[PACKAGE / "rule.py"] for name in of_rules)


@pytest.mark.parametrize(("where", "call"), MADE, ids=[where for where, _ in MADE])
def test_what_is_given_is_in_the_table_with_all_its_data(where: str, call: ast.Call) -> None:
    code = NAMES[code_given(call)]
    given = {k.arg for k in call.keywords if k.arg}
    added = OF_A_VALUE if OF_A_VALUE & fields_of(code) else set()
    assert given - added == fields_of(code) - added, where


def test_nobody_refuses_with_a_sentence_of_their_own() -> None:
    sentences = [
        where for where, call in calls_of(REFUSALS)
        if call.args and isinstance(call.args[0], (ast.Constant, ast.JoinedStr))
    ]  # fmt: skip
    assert not sentences, "give the reason a code in autofuse/reasons/: `because(...)`"


def test_names_are_kebab_case_and_occur_once() -> None:
    codes = [code for group in GROUPS for code in codes_of(group)]
    assert len(codes) == len(TABLE) == len({c.name for c in codes})
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in TABLE)


@pytest.mark.parametrize("code", TABLE.values(), ids=list(TABLE))
def test_a_code_says_when_it_appears_and_its_texts_begin_and_end_as_the_others_do(code: Code) -> None:
    assert code.about.endswith(".") and code.sentence
    for template in filter(None, (code.sentence, code.named, code.advice)):
        assert not template.endswith(".") and not template.endswith(" ")


@pytest.mark.parametrize("name", sorted(set(TABLE) - UNREACHED - NEVER_SEEN))
def test_a_program_in_the_tests_gives_it(name: str) -> None:
    tests = (p for p in (REPOSITORY / "tests").rglob("test_*.py") if p != Path(__file__))
    assert any(f'"{name}"' in p.read_text() for p in tests)


def test_the_page_of_refusals_is_that_of_the_table() -> None:
    assert PAGE.read_text() == page(), "run `python -m tools.refusals`"
    assert all(f"| `{name}` |" in page() for name in TABLE)
