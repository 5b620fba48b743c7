"""Patterns match in any order and without optional steps, and report near misses."""

from __future__ import annotations

import ast
import textwrap

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.loading.registry import load_rules
from autofuse.match.engine import sites
from autofuse.match.site import Site
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope, functions


def sites_in(text: str) -> list[Site]:
    found: list[Site] = []
    for defined in functions(file_scope(ast.parse(textwrap.dedent(text)))):
        captured = capture(defined.function, defined.scope, defined.owner)
        found += sites(captured.graph, View(Facts(captured.known)), load_rules())
    return found


def test_optional_steps_may_all_be_missing() -> None:
    (site,) = sites_in("def f(q, k, v): return (q @ k.mT).softmax(-1) @ v")
    assert set(site.captures) == {"query", "key", "value"}


def test_a_parameter_captures_all_remaining_factors() -> None:
    (site,) = sites_in("def f(q, k, v, a: float, b: float): return (a * (q @ k.mT) / b).softmax(-1) @ v")
    assert site.captures["scale"].op == "mul" and len(site.captures["scale"].inputs) == 2


def test_permuted_operands_are_captured_with_their_permutation() -> None:
    (site,) = sites_in(
        "import torch\ndef f(q, k, v):\n"
        "    w = torch.einsum('bqhd,bkhd->bhqk', q, k).softmax(-1)\n    return torch.einsum('bhqk,bkhd->bqhd', w, v)"
    )
    assert [site.captures[n].op for n in ("query", "key", "value")] == ["permute"] * 3
    assert site.results[-1].permutation == (-2, -3, -1)


def test_a_cast_inside_the_match_is_removed_from_the_operands() -> None:
    (site,) = sites_in("def f(q, k, v): return (q.float() @ k.float().mT).softmax(-1).type_as(v) @ v")
    assert site.captures["query"].op == "parameter"


def test_a_cast_of_only_the_input_stays() -> None:
    (site,) = sites_in(
        "import torch\ndef f(x, w):\n    x = x.float()\n    return x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6)"
    )
    assert site.captures["x"].op == "cast"


def test_a_cast_back_after_the_match_belongs_to_it() -> None:
    head = "import torch\ndef f(x, w):\n    h = x.float()\n    h = h * torch.rsqrt(h.pow(2).mean(-1, True) + 1e-6)\n"
    (site,) = sites_in(head + "    return h.to(x.dtype)")
    assert site.captures["x"].op == "parameter" and site.root.op == "to"
    (site,) = sites_in(head + "    return h.to(w.dtype)")
    assert site.captures["x"].op == "cast" and site.root.op == "mul"


def test_literals_match_up_to_the_digits_that_authors_write() -> None:
    (site,) = sites_in("import torch\ndef f(x): return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x ** 3)))")
    assert site.rule.rule.code == "AF301"


def test_a_parameter_must_be_the_same_value_everywhere() -> None:
    assert sites_in("import torch\ndef f(x, y): return 0.5 * x * (1 + torch.erf(y / 2 ** 0.5))") == []


def test_softmax_over_another_dimension_is_a_near_miss() -> None:
    (site,) = sites_in("def f(q, k, v): return (q @ k.mT).softmax(-2) @ v")
    assert "softmax" in str(site.verdict.why) and "-2" in str(site.verdict.why)


def test_torchs_own_operation_is_not_a_site() -> None:
    assert sites_in("import torch.nn.functional as F\ndef f(x, w, b): return F.gelu(F.layer_norm(x, (8,), w, b))") == []


def test_a_rule_with_two_results_finds_both() -> None:
    (site,) = sites_in(
        "import torch.nn.functional as F\ndef f(self, x, y):\n"
        "    h = x + F.dropout(y, 0.1, True)\n    n = F.layer_norm(h, (8,), self.w, self.b)\n    return h * 2, n"
    )
    assert len(site.results) == 2 and site.rule.replacement.operation == "dropout_add_norm"


def test_the_wider_match_is_preferred_to_the_one_inside_it() -> None:
    (site,) = sites_in(
        "import torch, torch.nn.functional as F\ndef f(x, a, b, c, d):\n"
        "    h = F.linear(x, a, b)\n    return F.linear(h * torch.sigmoid(h), c, d)"
    )
    assert site.rule.rule.code == "AF304"


def test_the_wider_match_names_the_rules_that_it_covers() -> None:
    (site,) = sites_in(
        "import torch, torch.nn.functional as F\ndef f(x, a, b, c, d):\n"
        "    h = F.linear(x, a, b)\n    return F.linear(h * torch.sigmoid(h), c, d)"
    )
    assert site.covers == ("AF302",)
