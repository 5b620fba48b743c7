"""The documentation is correct: links lead to files, code parses, and names exist."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from autofuse.cli.arguments import parser
from autofuse.loading.registry import load_rules
from autofuse.project.config import _KEYS
from autofuse.project.run import rewrite_text
from autofuse.results.findings import FIELDS

REPOSITORY = Path(__file__).parents[1]
_COMMANDS = ("check", "rewrite", "rules", "explain", "kernels", "tune", "cache", "profile", "compare", "plan", "server")
DECISIONS = sorted((REPOSITORY / "docs" / "decisions").glob("*.md"))
START = sorted((REPOSITORY / "docs" / "start").glob("*.md"))
PAGES = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").glob("*.md")), *START, *DECISIONS]
BLOCKS = [
    (page, language, code)
    for page in PAGES
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
]


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def blocks(*languages: str) -> list[object]:
    found = [(page, code) for page, language, code in BLOCKS if language in languages]
    return [pytest.param(page, code, id=f"{page_id(page)}-{i}") for i, (page, code) in enumerate(found)]


def options_of(command: str) -> set[str]:
    """The options of a command, from its parser."""
    (commands,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {o for a in commands.choices[command]._actions for o in a.option_strings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_link_leads_to_an_existing_file(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


# The gallery names files of other repositories.
@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "gallery.md"], ids=page_id)
def test_every_path_in_the_text_exists(page: Path) -> None:
    paths = re.findall(r"`((?:autofuse|rules|tests|docs|benchmarks|examples)/[\w./-]*)`", page.read_text())
    planned = {"autofuse/kernels"}
    assert [p for p in paths if p not in planned and not (REPOSITORY / p).exists()] == []


@pytest.mark.parametrize(("page", "code"), blocks("python", "py"))
def test_every_python_block_parses(page: Path, code: str) -> None:
    ast.parse(code)


@pytest.mark.parametrize(("page", "code"), blocks("toml", "yaml", "json"))
def test_every_data_block_parses(page: Path, code: str) -> None:
    read = {"{": json.loads, "[": tomllib.loads, "-": yaml.safe_load, "r": yaml.safe_load}[code.lstrip()[0]]
    assert read(code)


@pytest.mark.parametrize(("page", "code"), blocks("sh"))
def test_every_command_in_the_text_exists_with_its_options(page: Path, code: str) -> None:
    for name, rest in re.findall(r"^(?:.*/)?autofuse (\w+)([^#\n<]*)", code, re.MULTILINE):
        if name == "demo":
            continue
        arguments = parser().parse_args([name, *shlex.split(rest)])
        assert arguments.command == name


def test_every_option_of_the_commands_is_documented() -> None:
    described = (REPOSITORY / "docs" / "cli.md").read_text()
    options = {o for name in _COMMANDS for o in options_of(name)} - {"-h", "--help"}
    assert [o for o in sorted(options) if o not in described] == []


def test_every_documented_option_exists() -> None:
    described = set(re.findall(r"`(--[\w-]+)", (REPOSITORY / "docs" / "cli.md").read_text()))
    options = {o for name in _COMMANDS for o in options_of(name)}
    assert described <= options


def test_the_documented_json_is_the_printed_json() -> None:
    page = (REPOSITORY / "docs" / "cli.md").read_text()
    (described,) = (json.loads(code) for code in re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    assert list(described) == ["version", "findings"]
    assert tuple(described["findings"][0]) == FIELDS


def test_every_key_of_the_configuration_is_documented() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == list(_KEYS)


def test_the_list_of_rules_has_every_rule() -> None:
    table = re.findall(r"^\| (AF\d+) \|", (REPOSITORY / "docs" / "rules.md").read_text(), re.MULTILINE)
    assert table == sorted({loaded.rule.code for loaded in load_rules()})


def test_the_diff_in_the_readme_is_that_of_a_rewrite() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    lines = [line or " " for line in diff.splitlines()]
    before, after = ("\n".join(ln[1:] for ln in lines if ln[0] in kept) + "\n" for kept in (" -", " +"))
    imports = "import math\n\nimport torch\nimport torch.nn.functional as F\n\n\n"
    assert rewrite_text(imports + before, load_rules()) == imports + after


def test_the_architecture_shows_every_part_of_the_package() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    parts = [p for p in (REPOSITORY / "autofuse").iterdir() if not p.name.startswith(("__", "py.typed"))]
    shown = set(re.findall(r"^  ([\w.]+/?)  ", page, re.MULTILINE))
    assert {p.name + ("/" if p.is_dir() else "") for p in parts} == shown


def test_the_page_on_the_architecture_is_short() -> None:
    assert len((REPOSITORY / "docs" / "architecture.md").read_text().splitlines()) < 120


@pytest.mark.parametrize("page", [p for p in DECISIONS if p.name != "README.md"], ids=lambda p: p.stem)
def test_a_decision_states_context_decision_and_evidence_on_one_page(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Evidence"]
    assert len(text.split()) < 500


def test_the_index_lists_every_decision_once() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (REPOSITORY / "docs" / "decisions" / "README.md").read_text())
    assert sorted(listed) == [p.name for p in DECISIONS if p.name != "README.md"]


def test_the_glossary_is_in_alphabetical_order() -> None:
    words = re.findall(r"^\| ([^|-][^|]*) \|", (REPOSITORY / "docs" / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert words == sorted(words, key=str.casefold)
