"""The table of reasons is complete: the package uses exactly its codes, and each is documented and tested."""

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
from tests.reasons.test_writing import WITHOUT_PROGRAM
from tools.refusals import PAGE, page

PACKAGE = Path(autofuse.__file__).parent
REPOSITORY = PACKAGE.parent
NAMES = {
    f"{group.__name__.rpartition('.')[2]}.{name}": code
    for group in GROUPS
    for name, code in vars(group).items()
    if isinstance(code, Code)
}
MAKERS = {"because": 1, "_about": 2}  # function -> number of arguments before the data
VALUE_FIELDS = {"what", "which"}  # legality.py adds these to reasons about a value
REFUSALS = {"Fails", "Unknown", "Untraceable", "Unwritable", "NotInTarget", "CannotBuild", "refuse"}


def find_calls(names: set[str]) -> Iterator[tuple[str, ast.Call]]:
    """Yields every call of these functions in the package, except in the reasons, with its file and line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if not path.is_relative_to(PACKAGE / "reasons") and any(f"{name}(" in text for name in names):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and called_name(node) in names:
                    yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", node


def called_name(call: ast.Call) -> str:
    """The name of the called function without its module. autofuse.display.units has another `because`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return "" if ast.unparse(function) == "units.because" else function.attr
    return function.id if isinstance(function, ast.Name) else ""


def code_argument(call: ast.Call) -> str:
    return ast.unparse(call.args[0]) if call.args and isinstance(call.args[0], ast.Attribute) else ""


def placeholders(code: Code) -> set[str]:
    """The placeholders of a code's templates."""
    templates = (code.sentence, code.named, code.advice)
    return {name for t in templates for _, name, _, _ in string.Formatter().parse(t) if name} - {"value"}


REASON_CALLS = [(where, call) for where, call in find_calls(set(MAKERS)) if code_argument(call)]


def test_the_package_uses_every_code() -> None:
    text = {p: p.read_text() for p in PACKAGE.rglob("*.py") if "reasons" not in p.parts}
    used = {name for t in text.values() for found in re.findall(r"\w+\.\w+", t) if (name := found) in NAMES}
    of_rules = {"matches.RULE_DECLINED", "matches.RULE_UNKNOWN"}  # autofuse/rule.py names these without their group
    assert set(NAMES) - used == of_rules
    assert all(name.partition(".")[2] in text[PACKAGE / "rule.py"] for name in of_rules)


@pytest.mark.parametrize(("where", "call"), REASON_CALLS, ids=[where for where, _ in REASON_CALLS])
def test_every_reason_in_the_package_has_all_its_data(where: str, call: ast.Call) -> None:
    code = NAMES[code_argument(call)]
    given = {k.arg for k in call.keywords if k.arg}
    added = VALUE_FIELDS if VALUE_FIELDS & placeholders(code) else set()
    assert given - added == placeholders(code) - added, where


def test_every_refusal_uses_a_code() -> None:
    sentences = [
        where for where, call in find_calls(REFUSALS)
        if call.args and isinstance(call.args[0], (ast.Constant, ast.JoinedStr))
    ]  # fmt: skip
    assert not sentences, "give the reason a code in autofuse/reasons/: `because(...)`"


def test_names_are_kebab_case_and_occur_once() -> None:
    codes = [code for group in GROUPS for code in codes_of(group)]
    assert len(codes) == len(TABLE) == len({c.name for c in codes})
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in TABLE)


@pytest.mark.parametrize("code", TABLE.values(), ids=list(TABLE))
def test_the_texts_of_a_code_follow_the_conventions(code: Code) -> None:
    assert code.about.endswith(".") and code.sentence
    for template in filter(None, (code.sentence, code.named, code.advice)):
        assert not template.endswith(".") and not template.endswith(" ")


@pytest.mark.parametrize("name", sorted(set(TABLE) - WITHOUT_PROGRAM - NEVER_SEEN))
def test_a_program_in_the_tests_has_this_reason(name: str) -> None:
    tests = (p for p in (REPOSITORY / "tests").rglob("test_*.py") if p != Path(__file__))
    assert any(f'"{name}"' in p.read_text() for p in tests)


def test_the_page_of_refusals_matches_the_table() -> None:
    assert PAGE.read_text() == page(), "run `python -m tools.refusals`"
    assert all(f"| `{name}` |" in page() for name in TABLE)
