"""Rules are loaded from autofuse and from the folders of a project. A malformed rule is refused with a reason."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import pytest

from autofuse.ir.graph import ancestors
from autofuse.loading.examples import check_examples
from autofuse.loading.registry import load_rules
from autofuse.match.pattern import LoadedRule
from autofuse.rule import Constant, RuleError

BUILT_IN = load_rules()
REPOSITORY = Path(__file__).parents[2]

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


def test_a_rule_in_a_projects_folder_is_loaded(tmp_path: Path) -> None:
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
def test_a_malformed_rule_is_refused_with_a_reason(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RuleError, match=said):
        load_rules(rules_folder(tmp_path, text))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="does not exist"):
        load_rules((tmp_path / "nowhere",))


RECOGNISED = frozenset("activation layer_norm rms_norm softmax log_softmax cross_entropy rotation sigmoid".split())


@pytest.mark.parametrize("loaded", BUILT_IN, ids=[r.rule.__name__ for r in BUILT_IN])
def test_a_before_that_matches_several_formulas_names_the_file_that_recognizes_them(loaded: LoadedRule) -> None:
    steps = {v.op for result in loaded.pattern.results for v in ancestors(result)}
    if loaded.change is not None or steps.isdisjoint(RECOGNISED):
        return
    named = re.findall(r"autofuse/canonical/recognise/\w+\.py", inspect.getsource(loaded.rule.before))
    assert named and all((REPOSITORY / n).exists() for n in named)


def test_rules_that_differ_in_a_choice_share_one_before(tmp_path: Path) -> None:
    text = (
        OWN_RULE.replace('code = "MY101"', 'fixed = {"power": 2, "by": 1.0}\n    code = "MY101"')
        .replace("def before(x)", "def before(x, by=1.0, *, power)")
        .replace("torch.relu(x) * torch.relu(x)", "(torch.relu(x) ** 2 if power == 2 else torch.relu(x) ** 3) * by")
        .replace("def after(x)", "def after(x, by=1.0, *, power)")
        .replace("ops.squared_relu(x)", "ops.power_of_relu(x, by=by, power=power)")
    ) + (
        "\n\nclass CubedRelu(SquaredRelu):\n"
        '    """Cubed ReLU."""\n\n'
        '    code = "MY102"\n'
        '    fixed = {"power": 3, "by": 1.0}\n'
        '    examples = (Fused("a cube", before="import torch\\ndef f(x): return torch.relu(x) ** 3"),)\n'
    )
    own = [r for r in load_rules(rules_folder(tmp_path, text)) if r.rule.code.startswith("MY")]
    assert [dict(r.replacement.arguments) for r in own] == [
        {"": "x", "power": Constant(2)},
        {"": "x", "power": Constant(3)},
    ]
