"""The search for words misses no rule: every spelling of every operation in the vocabulary is found in a file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from autofuse.canonical import view as canonical_view
from autofuse.ir.rows import REQUIRED
from autofuse.ir.vocabulary import MODULES, OPS, Op
from autofuse.loading.registry import load_rules
from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import SourceFile
from autofuse.project.run import CheckedFile, RewriteRun
from autofuse.source.find.required_words import WITHOUT_WORDS, WRITTEN_AS, required_words

# Parameter name -> argument, where torch does not accept a tensor.
_ARGUMENTS = {
    "dim": "-1", "dim0": "-1", "dim1": "-2", "exponent": "3", "min": "0.1", "max": "0.9", "threshold": "20",
    "equation": '"ij,jk->ik"', "*operands": "x, w", "*dims": "0, 2, 1", "pattern": '"a b -> b a"', "*shape": "2, 3",
    "shape": "(2, 3)",
    "index": "0", "tensors": "[x, w]", "*target": "torch.float64", "dtype": "torch.float32", "*bounds": "4",
    "normalized_shape": "8", "num_groups": "2", "split_size": "2", "chunks": "2", "sizes": "(2, -1)", "name": '"gelu"',
    "fill_value": "1.0", "**options": "", "data": "x",
}  # fmt: skip
# Operations that compute nothing by themselves, or no tensor. A rule that ends in one is refused.
NO_RESULT = frozenset(
    """
    transpose mT t permute rearrange view contiguous clone detach expand expand_as squeeze unsqueeze chunk split unbind
    select flatten unflatten view_as view_as_complex view_as_real long to float double half bfloat16 type_as rows
    size dim finfo masked
""".split()
) | {"var_mean"}  # two results of one call
# Python's operators and reserved words.
_OPERATORS = {
    "u-": "-x", "~": "~x", "+": "x + w", "-": "x - w", "*": "x * w", "/": "x / w", "//": "x // w", "%": "x % w",
    "**": "x ** 3", "@": "x @ w", "==": "x == w", "!=": "x != w", "<": "x < w", "<=": "x <= w", ">": "x > w",
    ">=": "x >= w", "&": "x & w", "|": "x | w",
}  # fmt: skip
_IMPORTS = "import math\nimport operator\n\nimport einops\nimport numpy\nimport torch\nimport autofuse.ops\n"


def call(op: Op, name: str) -> str:
    """A call of an operation by one of its names."""
    if name in _OPERATORS:
        return _OPERATORS[name]
    tensors = iter(("x", "w", "u", "v"))
    required = [n for n, default in op.parameters.items() if default is REQUIRED]
    arguments = [g for n in required if (g := _ARGUMENTS[n] if n in _ARGUMENTS else next(tensors))]
    if not name.startswith("."):
        return f"{name}({', '.join(arguments)})"
    return f"{arguments[0]}{name}" + ("" if name == ".mT" else f"({', '.join(arguments[1:])})")


def parameters(text: str) -> str:
    names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    return ", ".join(n for n in "xwuv" if n in names)


_RULE = '''

class {name}(Rule):
    """{op}."""

    code = "{code}"

    @staticmethod
    def before({parameters}):
        return {text}

    @staticmethod
    def after({parameters}):
        return of_mine({parameters})

    examples = (Fused("as written", before={example!r}),)
'''


def rule(op: Op) -> str:
    text = call(op, op.names[0])
    example = f"{_IMPORTS}def f({parameters(text)}):\n    return {text}\n"
    return _RULE.format(
        name=f"Rule{code(op)}", op=op.name, code=code(op), parameters=parameters(text), text=text, example=example
    )


def code(op: Op) -> str:
    return f"MY{sorted(OPS).index(op.name):03}"


_ENDS = [op for op in OPS.values() if op.names and op.name not in NO_RESULT]  # an assignment has no name
SPELLINGS = [(op, name) for op in _ENDS for name in op.names]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> FileSettings:
    """A project with a rule of its own for each operation."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "my_rules").mkdir()
    head = (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nfrom autofuse.rule import Fused, Rule\n"
        "if TYPE_CHECKING:\n    from my_package import of_mine\n"
    ) + "".join(f"    {line}\n" for line in _IMPORTS.splitlines() if line)
    (folder / "my_rules" / "one_each.py").write_text(head + "".join(map(rule, _ENDS)))
    return FileSettings(folder, rules=(folder / "my_rules",))


@pytest.mark.parametrize(("op", "name"), SPELLINGS, ids=[f"{op.name} as {name}" for op, name in SPELLINGS])
def test_a_rule_with_one_operation_matches_every_spelling_of_it(
    settings: FileSettings, op: Op, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOFUSE_ALLOW_RULES", str(settings.root))
    text = call(op, name)
    file = settings.root / "model.py"
    file.write_text(f"{_IMPORTS}\n\ndef model({parameters(text)}):\n    return {text}\n")
    checked = RewriteRun(select=(code(op),)).check(SourceFile(str(file), settings, named=True))
    assert isinstance(checked, CheckedFile)
    assert [p.finding.rule for p in checked.proposals] == [f"Rule{code(op)}"]


def test_the_patterns_of_the_built_in_rules_give_their_words() -> None:
    hints = required_words([r for r in load_rules() if r.change is None])
    assert not hints.search(b"import torch\n\ndef double(x):\n    return torch.matmul(x, x) + 2\n")
    for text in (
        b"F.softmax(x)",
        b"nn.GELU()",
        b"x.clamp(0, 6)",
        b"a * c + torch.cat((-b, a), -1) * s",
        b"self.norm(x) + y",
    ):
        assert hints.search(text), text


def test_every_operation_of_the_canonical_form_has_words() -> None:
    operations = set[str]()
    for path in Path(canonical_view.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if node.func.attr in ("plain", "make", "fresh") and isinstance(first, ast.Constant):
                    operations.add(str(first.value))
    without_row = operations - WITHOUT_WORDS - WRITTEN_AS.keys()
    by_name = {
        "chunk",
        "size",
        "permute_by",
        "finfo",
        "tril",
        "triu",
        "scatter",
        "zeros_like",
    }  # their own names are their words
    assert without_row <= by_name, "give it a row in find/required_words.py"


def test_the_tables_name_existing_operations() -> None:
    assert {m.op for m in MODULES.values()} - OPS.keys() <= {"identity"}
    introduced = {"rotation", "choice", "item", "slice", "tuple", "attribute", "is_none", "not", "cast", "keep", "kept"}
    introduced |= {"permute_by", "sink_softmax", "picked", "flat", "refold", "real", "imag", "float32"}
    assert {kind.partition(" ")[0] for kind in WRITTEN_AS} | WITHOUT_WORDS <= OPS.keys() | introduced
