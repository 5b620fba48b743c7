"""Attention that also returns its weights is fused if no caller reads them. Otherwise the advice names the callers."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from autofuse.cli import main
from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals
from tests.source.rewriting import source

HEAD = source("""
    import math

    import torch
    import torch.nn.functional as F
    from torch import nn


""")
DEFINED = {
    "a function": source("""
        def attend(q, k, v, mask=None):
            weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
            return weights @ v, weights


        class Model(nn.Module):
            def call(self, x):
                return attend(x, x, x)
    """),
    "a function with a choice": source("""
        def attend(q, k, v, mask=None):
            scale = math.sqrt(q.size(-1) if mask is None else q.size(-1))
            weights = F.softmax(q @ k.transpose(-2, -1) / scale, dim=-1)
            return weights @ v, weights


        class Model(nn.Module):
            def call(self, x):
                return attend(x, x, x)
    """),
    "a method": source("""
        class Model(nn.Module):
            def attend(self, q, k, v):
                weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
                return weights @ v, weights

            def call(self, x):
                return self.attend(x, x, x)
    """),
    "a module": source("""
        class Attention(nn.Module):
            def forward(self, q, k, v):
                scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
                weights = F.softmax(scores, dim=-1)
                out = torch.matmul(weights, v)
                return out, weights


        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Attention()

            def call(self, x):
                return self.inner(x, x, x)
    """),
    "a module of a list": source("""
        class Attention(nn.Module):
            def forward(self, q, k, v):
                weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
                out = weights @ v
                if q.size(1) > 100:
                    return out * 0.5, weights
                return out, weights


        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([Attention() for _ in range(2)])

            def call(self, x):
                return self.layers[0](x, x, x)
    """),
}
UNREAD_USES = {  # statements that do not read the weights that `call` returns
    "unpacked into a name that is not read": "y, weights = {call}\n        return y * 2",
    "unpacked into an underscore": "y, _ = {call}\n        return y * 2",
    "unpacked into a star": "y, *_ = {call}\n        return y * 2",
    "taken by its index": "return {call}[0] * 2",
    "taken by a slice": "return {call}[:1][0] * 2",
    "taken from a name": "out = {call}\n        y = out[0]\n        return y * 2",
    "unpacked from a name": "out = {call}\n        y, rest = out\n        return y * 2",
    "called without using the result": "{call}\n        y, _ = {call}\n        return y * 2",
    "called twice": "y, _ = {call}\n        z = {call}[0]\n        return y + z",
}
READING_USES = {  # statements that read them
    "returned": "y, weights = {call}\n        return y, weights",
    "printed": "y, weights = {call}\n        print(weights)\n        return y",
    "appended": "y, weights = {call}\n        kept = []\n        kept.append(weights)\n        return y",
    "assigned to an attribute": "y, self.weights = {call}\n        return y",
    "unpacked into a star that is read": "y, *rest = {call}\n        return y + rest[0].sum()",
    "taken by its index": "return {call}[1]",
    "taken from the end": "return {call}[-1]",
    "taken by a slice": "return {call}[0:][1]",
    "taken by a computed index": "i = 1\n        return {call}[i]",
    "read in one of two calls": "y, _ = {call}\n        z = {call}[1]\n        return y, z",
    "passed to a function": "return sum(t.sum() for t in {call})",
    "passed to a function by name": "out = {call}\n        return list(out)",
    "read by a nested function": "y, weights = {call}\n        return (lambda: weights)(), y",
    "returned as a tuple": "return {call}",
    "changed in place": "y, weights = {call}\n        weights += 1\n        return y",
    "assigned to a global name": "global weights\n        y, weights = {call}\n        return y",
    "tested": "y, weights = {call}\n        if weights is None:\n            return y\n        return y * 3",
}


def program(defined: str, used: str) -> str:
    """A model with this attention, and a forward that uses the result of its call."""
    text, _, call = DEFINED[defined].rpartition("        return ")
    text = text.rpartition("    def call")[0]
    return f"{HEAD}{text}    def forward(self, x):\n        {used.format(call=call.strip())}\n"


def find_findings(text: str, path: Path, *others: Path) -> list[Finding]:
    path.write_text(text)
    files = ProjectFiles((str(path), *map(str, others)))
    return [p.finding for p in proposals(text.encode(), str(path), rules=load_rules(), files=files)]


def output_and_gradient(path: Path) -> list[torch.Tensor]:
    """The output of a file's model for one input, and the gradient."""
    x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = runpy.run_path(str(path))["Model"]().forward(x)
    y.sum().backward()
    return [y, x.grad]


@pytest.mark.parametrize("used", UNREAD_USES)
@pytest.mark.parametrize("defined", DEFINED)
def test_the_function_returns_none_for_weights_that_no_caller_reads(defined: str, used: str, tmp_path: Path) -> None:
    path, text = tmp_path / "model.py", program(defined, UNREAD_USES[used])
    (finding,) = (f for f in find_findings(text, path) if f.status == "unsafe")
    assert finding.code == "AF101" and "returns None for `weights`: assumes that no caller" in finding.message
    before = output_and_gradient(path)
    assert main(["rewrite", str(path)]) == 0 and re.search(r"return .*, weights\n", path.read_text()), "not a safe edit"
    path.write_text(text)
    assert main(["rewrite", "--unsafe", str(path)]) == 0
    after = path.read_text()
    assert "scaled_dot_product_attention" in after and "softmax" not in after and ", None\n" in after
    for one, other in zip(before, output_and_gradient(path), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert main(["rewrite", "--unsafe", str(path)]) == 0 and path.read_text() == after


@pytest.mark.parametrize("used", READING_USES)
@pytest.mark.parametrize("defined", DEFINED)
def test_weights_that_a_caller_reads_stay_and_the_advice_names_the_caller(
    defined: str, used: str, tmp_path: Path
) -> None:
    path, text = tmp_path / "model.py", program(defined, READING_USES[used])
    (finding,) = (f for f in find_findings(text, path) if f.code == "AF101")
    assert (finding.status, finding.reason_code) == ("declined", "value-returned")
    first = text[: text.index("def forward(self, x)")].count("\n") + 1
    named = [int(n) for n in re.findall(r"\d+", finding.advice.partition("` at line ")[2].partition(" (")[0])]
    assert all(n >= first for n in named)
    if used not in ("returned", "returned as a tuple"):
        assert named
    assert main(["rewrite", "--unsafe", str(path)]) == 0 and "scaled_dot" not in path.read_text()


def test_code_that_follows_the_advice_is_fused(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    text = program("a module", READING_USES["assigned to an attribute"])
    (finding,) = (f for f in find_findings(text, path) if f.code == "AF101")
    line = text[: text.index("y, self.weights = ")].count("\n") + 1
    assert f"` at line {line} (assigned to `self.weights`)" in finding.advice
    assert finding.advice.endswith("if they do not need it, return None in its place: then AF101 applies")
    followed = text.replace("return out, weights", "return out, None").replace("y, self.weights = ", "y, _ = ")
    (finding,) = find_findings(followed, path)
    assert (finding.code, finding.status) == ("AF101", "safe")


RETURNING_IN_TURN = HEAD + source("""
    class Attention(nn.Module):
        def forward(self, q, k, v):
            weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
            return weights @ v, weights


    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, x):
            y, weights = self.attention(x, x, x)
            return y.relu(), x, weights


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = Heads()

        def forward(self, x):
            {use}
""")


def test_weights_that_a_caller_returns_in_turn_may_be_unread(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    text = RETURNING_IN_TURN.replace("{use}", "y, x, _ = self.heads(x)\n        return y + x")
    (finding,) = find_findings(text, path)
    line = text[: text.index("self.heads(x)")].count("\n") + 1
    assert finding.status == "unsafe" and f"no caller reads it, as at line {line}" in finding.message
    before = output_and_gradient(path)
    main(["rewrite", "--unsafe", str(path)])
    for one, other in zip(before, output_and_gradient(path), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_weights_that_a_caller_returns_in_turn_may_be_read(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    text = RETURNING_IN_TURN.replace("{use}", "y, x, w = self.heads(x)\n        return y + x, w.sum()")
    (finding,) = find_findings(text, path)
    assert finding.status == "declined"
    for use in ("return y + x, w.sum()",):
        assert f"at line {text[: text.index(use)].count(chr(10)) + 1};" in finding.advice


def test_weights_that_a_caller_without_callers_returns_count_as_read(tmp_path: Path) -> None:
    text = RETURNING_IN_TURN.replace("{use}", "return x")
    (finding,) = find_findings(text, tmp_path / "model.py")
    assert finding.status == "declined"


def test_without_a_caller_the_advice_names_none(tmp_path: Path) -> None:
    text = HEAD + DEFINED["a function"].partition("\n\n\nclass")[0] + "\n"
    (finding,) = find_findings(text, tmp_path / "model.py")
    assert (
        finding.status == "declined"
        and "only if the caller requests it, in a branch that computes it again" in finding.advice
    )


SINGLE = HEAD + source("""
    class Attention(nn.Module):
        def forward(self, query, key, value, mask=None, dropout=None):
            scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e9)
            probabilities = F.softmax(scores, dim=-1)
            if dropout is not None:
                probabilities = dropout(probabilities)
            return torch.matmul(probabilities, value), probabilities
""")
HEADS = source("""
    import torch
    from single import Attention
    from torch import nn


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()
            self.dropout = {layer}

        def forward(self, x, mask=None):
            y, {weights} = self.attention(x, x, x, mask=mask, dropout={given})
            return y
""")
LAYERS = {  # (the layer, the argument): whether the argument is proved to be an nn.Dropout or None
    ("nn.Dropout(0.1)", "self.dropout"): True,
    ("nn.Dropout(p=0.0)", "self.dropout"): True,
    ("nn.Dropout(0.1)", "torch.relu"): False,
    ("nn.Dropout2d(0.1)", "self.dropout"): False,
    ("nn.ReLU()", "self.dropout"): False,
    ("make()", "self.dropout"): False,
    ("nn.Dropout(0.1)", "self.dropout if mask is None else torch.relu"): False,
}


@pytest.mark.parametrize(("layer", "given"), LAYERS)
def test_a_parameter_is_dropout_if_every_caller_passes_a_dropout_layer(layer: str, given: str, tmp_path: Path) -> None:
    heads = tmp_path / "heads.py"
    heads.write_text(HEADS.format(layer=layer, weights="_", given=given))
    (finding,) = find_findings(SINGLE, tmp_path / "single.py", heads)
    line = heads.read_text().partition("self.attention(x")[0].count("\n") + 1
    assert (finding.code == "AF101") == LAYERS[layer, given]
    if LAYERS[layer, given]:
        assert finding.status == "unsafe"
        assert f"assumes that `dropout` is an nn.Dropout or None, as at heads.py:{line}" in finding.message
        assert f"assumes that no caller reads it, as at heads.py:{line}" in finding.message


def test_an_attention_and_its_caller_in_two_files_compute_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single, heads = tmp_path / "single.py", tmp_path / "heads.py"
    single.write_text(SINGLE)
    heads.write_text(HEADS.format(layer="nn.Dropout(0.0)", weights="weights", given="self.dropout"))
    monkeypatch.syspath_prepend(str(tmp_path))

    def run() -> list[torch.Tensor]:
        monkeypatch.delitem(__import__("sys").modules, "single", raising=False)
        model = runpy.run_path(str(heads))["Model"]()
        x = torch.randn(2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        masks = [None, torch.tril(torch.ones(5, 5)), torch.zeros(5, 5)]
        out = []
        for mask in masks:
            for training in (True, False):
                x.grad = None
                y = model.train(training)(x, mask)
                y.square().sum().backward()
                out += [y.detach(), x.grad.clone()]
        return out

    before = run()
    assert main(["rewrite", "--unsafe", "--select", "AF101", str(tmp_path)]) == 0
    assert "scaled_dot_product_attention" in single.read_text() and "softmax" not in single.read_text()
    for one, other in zip(before, run(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_advice_names_a_caller_in_another_file(tmp_path: Path) -> None:
    heads = tmp_path / "heads.py"
    heads.write_text(HEADS.format(layer="nn.Dropout(0.0)", weights="self.kept", given="self.dropout"))
    every = find_findings(SINGLE, tmp_path / "single.py", heads)
    (finding,) = (f for f in every if f.code == "AF101")
    line = heads.read_text().partition("self.attention(x")[0].count("\n") + 1
    assert finding.status == "declined" and f"` at heads.py:{line} (assigned to `self.kept`)" in finding.advice


OWN = HEAD + source("""
    class Model(nn.Module):
        def forward(self, x):
            weights = F.softmax(x @ x.transpose(-2, -1) / math.sqrt(x.size(-1)), dim=-1)
            return weights @ x, weights

        def used(self, x):
            y, _ = self(x)
            return y
""")
IN_SUBCLASS = "class Other(Model):\n    pass\n\n\nclass Shown(Other):\n    def {head}:\n        return {call}[1]\n"
OWN_CALLS = {  # code after `used` that reads the weights
    "self": "    def shown(self, x):\n        return self(x)[1]\n",
    "forward of self": "    def shown(self, x):\n        return self.forward(x)[1]\n",
    "another name for self": "    def shown(module, x):\n        return module(x)[1]\n",
    "self in a nested function": "    def shown(self, x):\n        return [f(x)[1] for f in [lambda x: self(x)]]\n",
    "the class": "    def shown(self, x):\n        return Model.forward(self, x)[1]\n",
    "super": IN_SUBCLASS.replace("Other(Model)", "Other(nn.Module)").replace("(Other)", "(Model)").format(
        head="forward(self, x)", call="super().forward(x)"
    ),
    "super with arguments": IN_SUBCLASS.replace("(Other)", "(Model)").format(
        head="forward(self, x)", call="super(Shown, self).forward(x)"
    ),
    "self of a subclass": IN_SUBCLASS.format(head="shown(self, x)", call="self(x)"),
}  # fmt: skip


@pytest.mark.parametrize("call", OWN_CALLS)
def test_a_method_that_reads_what_its_own_forward_returns_is_a_caller(call: str, tmp_path: Path) -> None:
    (finding,) = (f for f in find_findings(OWN, tmp_path / "model.py") if f.code == "AF101")
    assert finding.status == "unsafe"
    text = f"{OWN}\n{OWN_CALLS[call]}"
    (finding,) = (f for f in find_findings(text, tmp_path / "model.py") if f.code == "AF101")
    assert finding.status == "declined" and "callers read `weights` at line" in finding.advice


def test_a_method_of_a_class_above_calls_the_forward_of_a_subclass(tmp_path: Path) -> None:
    text = HEAD + source("""
        class Base(nn.Module):
            def shown(self, x):
                return self(x)[1]


        class Model(Base):
            def forward(self, x):
                weights = F.softmax(x @ x.transpose(-2, -1) / math.sqrt(x.size(-1)), dim=-1)
                return weights @ x, weights


        def use(model, x):
            y, _ = Model()(x)
            return y
    """)
    (finding,) = (f for f in find_findings(text, tmp_path / "model.py") if f.code == "AF101")
    assert finding.status == "declined" and "callers read `weights` at line" in finding.advice
