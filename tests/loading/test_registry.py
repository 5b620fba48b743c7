"""Rules are found in their folder, in a project's folders, and refused with a sentence where they are malformed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from autofuse.loading.examples import check_examples
from autofuse.loading.registry import load_rules
from autofuse.match.matcher import LoadedRule
from autofuse.rule import RuleError

BUILT_IN = load_rules()

OWN_RULE = '''
"""Squared ReLU, as an example of a rule of one's own."""
from typing import TYPE_CHECKING
from autofuse.rule import Fused, Kept, Rule

if TYPE_CHECKING:
    import torch
    from autofuse import ops


class SquaredRelu(Rule):
    """Squared ReLU."""

    code = "MY101"

    @staticmethod
    def before(x):
        return torch.relu(x) * torch.relu(x)

    @staticmethod
    def after(x):
        return ops.squared_relu(x)

    examples = (
        Fused("a square", before="import torch\\ndef f(x): return torch.relu(x) ** 2"),
        Kept("another factor", "import torch\\ndef f(x, y): return torch.relu(x) * torch.relu(y)"),
    )
'''


@pytest.mark.parametrize("loaded", BUILT_IN, ids=[r.rule.__name__ for r in BUILT_IN])
def test_every_rule_that_ships_finds_its_examples(loaded: LoadedRule) -> None:
    check_examples(loaded)


@pytest.mark.parametrize("loaded", BUILT_IN, ids=[r.rule.__name__ for r in BUILT_IN])
def test_every_rule_that_ships_is_documented(loaded: LoadedRule) -> None:
    assert (loaded.rule.__doc__ or "").strip().endswith(".")


def rules_folder(tmp_path: Path, text: str) -> tuple[Path, ...]:
    (tmp_path / "mine.py").write_text(textwrap.dedent(text))
    return (tmp_path,)


def test_a_rule_in_a_projects_folder_is_picked_up(tmp_path: Path) -> None:
    codes = {r.rule.code for r in load_rules(rules_folder(tmp_path, OWN_RULE))}
    assert codes == {r.rule.code for r in BUILT_IN} | {"MY101"}


MALFORMED = {
    "no after": (OWN_RULE.replace("def after", "def later"), "no `after`"),
    "after is no call": (OWN_RULE.replace("return ops.squared_relu(x)", "return x"), "must end in"),
    "after names something else": (OWN_RULE.replace("squared_relu(x)", "squared_relu(y)"), "may use only"),
    "before returns nothing": (
        OWN_RULE.replace("return torch.relu(x) * torch.relu(x)", "torch.relu(x)"),
        "returns nothing",
    ),
    "an example is not found": (OWN_RULE.replace("torch.relu(x) ** 2", "torch.relu(x) ** 3"), "does not find"),
    "no example": (OWN_RULE[: OWN_RULE.index("    examples")], "no example"),
    "a lowercase code": (OWN_RULE.replace("MY101", "my rule"), "capital letters"),
    "it does not import": (
        OWN_RULE.replace("import torch", "import torsh").replace("if TYPE_CHECKING", "if True"),
        "imported",
    ),
}


@pytest.mark.parametrize(("text", "said"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_rule_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RuleError, match=said):
        load_rules(rules_folder(tmp_path, text))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="does not exist"):
        load_rules((tmp_path / "nowhere",))
