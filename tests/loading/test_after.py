"""The `after` of a rule: calls of imported functions, literals, and the reason if it cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.match.pattern import LoadedRule
from autofuse.project.run import rewrite_text
from autofuse.rule import Constant, RuleError
from autofuse.source.find.check import proposals

HEAD = '''
from __future__ import annotations
from typing import TYPE_CHECKING
from autofuse.rule import Fused, Rule

if TYPE_CHECKING:
    import math
    import torch
    import torch.nn.functional as F
    import my_kernels.fast as fast
    from my_package import Acts, scaled
    from autofuse import ops

EPS = 1e-5


def here(x):
    return x


class Own(Rule):
    """A rule of the user."""

    code = "MY101"

    @staticmethod
    def before(x, factor{default}):
        return torch.exp(torch.tanh(x)) * factor

    @staticmethod
    def after(x, factor):
        {after}

    examples = (Fused("as written", before="import torch\\ndef f(x): return torch.tanh(x).exp() * 3\\n"),)
'''


def load_own_rule(tmp_path: Path, after: str, default: str = "") -> LoadedRule:
    (tmp_path / "own.py").write_text(HEAD.replace("{after}", after).replace("{default}", default))
    (found,) = [r for r in load_rules((tmp_path,)) if r.rule.code == "MY101"]
    return found


SOURCE = "import torch\n\n\ndef f(x):\n    return torch.exp(torch.tanh(x)) * 3\n"
WRITTEN = {
    "a function of torch.nn.functional": ("F.softplus(x)", "torch.nn.functional.softplus(x)"),
    "one that is deeper": ("torch.special.xlogy(x, factor)", "torch.special.xlogy(x, 3)"),
    "a negative keyword": ("F.softmax(x, dim=-1)", "torch.nn.functional.softmax(x, dim=-1)"),
    "small, negative and infinite numbers": (
        "torch.clamp(x, -1e-5, math.inf)",
        "torch.clamp(x, -1e-05, math.inf)",
    ),
    "a tuple, None and True": (
        "torch.sum(x, dim=(0, -1), keepdim=True, dtype=None)",
        "torch.sum(x, dim=(0, -1), keepdim=True, dtype=None)",
    ),
    "a string": ('torch.div(x, 2, rounding_mode="floor")', 'torch.div(x, 2, rounding_mode="floor")'),
    "a number that the file names": ("F.normalize(x, eps=EPS)", "torch.nn.functional.normalize(x, eps=1e-05)"),
    "an attribute of a module": ("x.to(torch.float32)", "x.to(torch.float32)"),
    "a nested call": ("F.softplus(torch.neg(x))", "torch.nn.functional.softplus(torch.neg(x))"),
    "a method on a result": ("F.softplus(x).mean(dim=-1)", "torch.nn.functional.softplus(x).mean(dim=-1)"),
    "operators": ("torch.sum(-x / (factor + 1), -1)", "torch.sum(-x / (3 + 1), -1)"),
    "what is not, and what both are": ("torch.sum(~(x & x) | x, -1)", "torch.sum(~(x & x) | x, -1)"),
    "a part of a shape": (
        "F.layer_norm(x, x.shape[-1:], eps=factor)",
        "torch.nn.functional.layer_norm(x, x.shape[-1:], eps=3)",
    ),
    "an index of several parts": ("torch.neg(x[:, None, ::2])", "torch.neg(x[:, None, ::2])"),
    "a module of one's own": ("fast.kernel(x, factor)", "my_kernels.fast.kernel(x, 3)"),
    "a function of one's own": ("scaled(x, by=factor)", "scaled(x, by=3)"),
    "a method of a class of one's own": ("Acts.scaled(x, by=factor)", "Acts.scaled(x, by=3)"),
}


@pytest.mark.parametrize(("after", "text"), WRITTEN.values(), ids=WRITTEN)
def test_the_call_of_an_after_is_written_to_files(tmp_path: Path, after: str, text: str) -> None:
    assert f"return {text}\n" in rewrite_text(SOURCE, [load_own_rule(tmp_path, f"return {after}")])


IMPORTS = {
    "import torch.nn.functional as F": ("F.softplus(x)", "F.softplus(x)"),
    "from torch.nn import functional": ("F.softplus(x)", "functional.softplus(x)"),
    "from torch.nn.functional import softplus as smooth": ("F.softplus(x)", "smooth(x)"),
    "from my_package import scaled as s": ("scaled(x, factor)", "s(x, 3)"),
    "import my_package": ("scaled(x, factor)", "my_package.scaled(x, 3)"),
    "import my_kernels.fast as mf": ("fast.kernel(x)", "mf.kernel(x)"),
}


@pytest.mark.parametrize(("statement", "pair"), IMPORTS.items(), ids=IMPORTS)
def test_a_file_that_has_the_function_keeps_its_own_spelling(
    tmp_path: Path, statement: str, pair: tuple[str, str]
) -> None:
    result = rewrite_text(f"{statement}\n{SOURCE}", [load_own_rule(tmp_path, f"return {pair[0]}")])
    assert f"return {pair[1]}\n" in result
    assert result.count("import") == 2


def test_a_missing_import_is_added(tmp_path: Path) -> None:
    result = rewrite_text(SOURCE, [load_own_rule(tmp_path, "return scaled(x, factor)")])
    assert result.startswith("import torch\nfrom my_package import scaled\n")


def test_an_import_does_not_rebind_a_name_of_the_file(tmp_path: Path) -> None:
    hidden = SOURCE.replace("def f", "scaled = my_kernels = None\n\n\ndef f")
    result = rewrite_text(hidden, [load_own_rule(tmp_path, "return scaled(x, factor)")])
    assert "from my_package import scaled as autofuse_scaled\n" in result and "autofuse_scaled(x, 3)" in result
    result = rewrite_text(hidden, [load_own_rule(tmp_path / "..", "return fast.kernel(x)")])
    assert "import my_kernels.fast as autofuse_my_kernels_fast\n" in result


def test_an_argument_that_the_code_omits_is_omitted_from_the_call(tmp_path: Path) -> None:
    rule = load_own_rule(tmp_path, "return scaled(x, by=factor)", default=": float = 1.0")
    assert "return scaled(x)\n" in rewrite_text(SOURCE.replace(" * 3", ""), [rule])


def test_an_operation_of_autofuse_takes_negative_literals_and_tuples(tmp_path: Path) -> None:
    rule = load_own_rule(tmp_path, "return ops.anything(x, factor, dim=-1, sizes=(1, -2))")
    assert dict(rule.replacement.arguments[2:]) == {"dim": Constant(-1), "sizes": Constant((1, -2))}
    assert rule.replacement.expression is None


REFUSED = {
    "an operation of autofuse's inside another call": ("return F.relu(ops.gelu(x))", "cannot be nested"),
    "an operation of autofuse's of what is computed": (
        "return ops.gelu(x * 2)",
        "Move other computations into the operation",
    ),
    "a function of the rule's own file": ("return here(x)", "which the rule's own file defines"),
    "a function that is not imported": ("return elsewhere(x)", "does not import"),
    "no function that is imported": ("return x.neg()", "calls no function"),
    "a step in place": ("return F.relu_(x)", "writes to what is captured"),
    "a method in place": ("return F.relu(x.add_(1))", "writes to what is captured"),
    "inplace=True": ("return F.relu(x, inplace=True)", "writes to what is captured"),
    "inplace by position": ("return F.relu(x, True)", "writes to what is captured"),
    "a call of a lambda": ("return F.relu((lambda y: y)(x))", "by its name"),
    "starred arguments": ("return F.relu(*x)", "Write each argument"),
    "a name of nothing": ("return F.relu(y)", "may use only literals"),
    "a lambda": ("return F.relu(lambda: x)", "may use only literals"),
    "statements of its own": ("y = x * 2; return F.relu(y)", "does more than return"),
    "an operator outside": ("return F.relu(x) + 1", "must end in a call"),
    "what it looks for": ("return F.relu(torch.exp(torch.tanh(x)) * factor)", "rewritten again"),
}


@pytest.mark.parametrize(("after", "said"), REFUSED.values(), ids=REFUSED)
def test_an_after_that_cannot_be_written_is_refused_with_a_reason(tmp_path: Path, after: str, said: str) -> None:
    with pytest.raises(RuleError, match=said):
        load_own_rule(tmp_path, after)


def test_an_optional_parameter_must_be_passed_by_keyword(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="by keyword: `factor=factor`"):
        load_own_rule(tmp_path, "return scaled(x, factor)", default=": float = 1.0")


def test_an_operation_that_is_not_in_the_vocabulary_is_named(tmp_path: Path) -> None:
    text = HEAD.replace("{after}", "return F.relu(x)").replace("{default}", "")
    (tmp_path / "own.py").write_text(text.replace("torch.tanh", "torch.fft.fft"))
    with pytest.raises(RuleError, match=r"Own.before uses torch.fft.fft, which is not in the vocabulary"):
        load_rules((tmp_path,))


def test_a_rule_without_a_where_is_unsafe_in_files(tmp_path: Path) -> None:
    rule = load_own_rule(tmp_path, "return F.softplus(x)")
    (found,) = proposals(SOURCE.encode(), "", rules=[rule])
    assert (found.finding.status, found.finding.reason) == (
        "unsafe",
        "Own does not say where it holds: it has no `where`",
    )


def test_a_function_of_another_package_must_be_installed_where_the_file_runs(tmp_path: Path) -> None:
    rule = load_own_rule(tmp_path, "return scaled(x, factor)")
    (found,) = proposals(SOURCE.encode(), "", rules=[rule])
    assert "the file then needs my_package where it runs" in found.finding.reason
    (found,) = proposals(SOURCE.encode(), "", rules=[rule], target="torch")
    assert found.edit is None and "torch has no my_package.scaled" in found.finding.message
