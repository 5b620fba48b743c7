"""The attributes of a rule are checked when it is loaded. Each mistake is reported in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.rule import RuleError

RULE = '''
from typing import TYPE_CHECKING
from autofuse.rule import Fails, Fused, Holds, Kept, Rule

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F


class Shrink(Rule):
    """A number less its hyperbolic tangent."""

    code = "MY101"
    benefit = 2

    @staticmethod
    def before(x):
        return x - torch.tanh(x)

    @staticmethod
    def after(x):
        return F.tanhshrink(x)

    @staticmethod
    def where(captures):
        return Holds()

    examples = (
        Fused("as functions", before="import torch\\ndef f(x): return x - torch.tanh(x)"),
        Kept("a sum", "import torch\\ndef f(x): return x + torch.tanh(x)"),
    )
'''

MISTAKES = {
    "a code that is a number": ('code = "MY101"', "code = 101", "capital letters"),
    "no code": ('    code = "MY101"\n', "", "has no code"),
    "the code of a rule that ships": ("MY101", "AF203", "ships with autofuse"),
    "a benefit in words": ("benefit = 2", "benefit = 'high'", "Write a number"),
    "one example, no tuple": ("    examples = (\n", "    examples = Kept('a', 'b')\n    rest = (\n", "not a tuple"),
    "an example that is a text": ("    examples = (\n", "    examples = ('a text',\n", "Fused(...) or Kept"),
    "an example that is no Python": ("def f(x): return x +", "def f(x) return x +", "is not Python"),
    "a where without its argument": ("def where(captures)", "def where()", "one parameter"),
    "a method in place of a where": (
        "    @staticmethod\n    def where(captures)",
        "    def where(self, captures)",
        "static",
    ),
    "a before that is not there": ("def before", "def earlier", "no `before`"),
    "an after of more than there is": ("def after(x)", "def after(x, y)", "takes `y`"),
    "parameters that have no name": ("def before(x)", "def before(x, *more)", "name of its own"),
    "a where that raises": ("return Holds()", "return 1 / 0", "Shrink.where raised ZeroDivisionError"),
    "a where that answers in bools": ("return Holds()", "return True", "Shrink.where returned True"),
    "a safety that is none": ("return Holds()", "return Holds('maybe')", "safe"),
    "a question about nothing": ("return Holds()", "return Holds() if captures.number('y') else None", "about `y`"),
    "a culprit that is nothing": ("return Holds()", "return Fails('so', capture='y')", "names the capture `y`"),
    "a where that declines the example": ("return Holds()", "return None", "`where` declines it"),
    "an end of the process": ("class Shrink", "raise SystemExit(3)\nclass Shrink", "SystemExit: 3"),
    "a name that is not imported": ("    import torch\n", "", "does not import torch"),
    "a branch": ("return x - torch", "if x: return x\n        return x - torch", "for each branch"),
    "results that are apart": ("return x - torch.tanh(x)", "return torch.exp(x), torch.tanh(x)", "from value 1"),
}


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_rule_is_reported_in_a_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in RULE
    (tmp_path / "mine.py").write_text(RULE.replace(old, new, 1))
    with pytest.raises(RuleError) as caught:
        load_rules((tmp_path,))
    assert said in str(caught.value)


def test_the_rule_without_a_mistake_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RULE)
    assert "MY101" in {r.rule.code for r in load_rules((tmp_path,))}


def test_after_cannot_use_the_sizes_of_a_norm(tmp_path: Path) -> None:
    text = RULE.replace("(x):\n        return x - torch.tanh(x)", "(x, sizes):\n        return torch.tanh(NORM)")
    text = text.replace("NORM", "F.layer_norm(x, sizes)").replace(
        "return F.tanhshrink(x)", "return F.rms_norm(x, sizes)"
    )
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(RuleError, match=r"Write `x.shape\[-1:\]` instead"):
        load_rules((tmp_path,))
