"""A match is refused when something would notice, with the reason and the culprit."""

from __future__ import annotations

import ast
import textwrap

import pytest

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.loading.registry import load_rules
from autofuse.match.engine import sites
from autofuse.match.site import Site
from autofuse.rule import Fails, Holds
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.scope import file_scope, functions

HEAD = "import torch\nimport torch.nn.functional as F\n"


def attention_sites(text: str) -> list[Site]:
    found: list[Site] = []
    for defined in functions(file_scope(ast.parse(HEAD + textwrap.dedent(text)))):
        captured = capture(defined.function, defined.scope, defined.owner)
        found += [
            s for s in sites(captured.graph, View(Facts(captured.known)), load_rules()) if s.rule.rule.code == "AF101"
        ]
    return found


REFUSED = {
    "returned": ("def f(q, k, v):\n    w = (q @ k.mT).softmax(-1)\n    return w @ v, w", "probabilities is returned"),
    "stored": ("def f(self, q, k, v):\n    w = (q @ k.mT).softmax(-1)\n    self.w = w\n    return w @ v", "is stored"),
    "appended": (
        "def f(q, k, v, log):\n    w = (q @ k.mT).softmax(-1)\n    log.append(w)\n    return w @ v",
        "probabilities",
    ),
    "printed": ("def f(q, k, v):\n    s = q @ k.mT\n    print(s)\n    return s.softmax(-1) @ v", "product of matrices"),
    "asserted": (
        "def f(q, k, v):\n    s = q @ k.mT\n    assert not s.isnan().any()\n    return s.softmax(-1) @ v",
        "product",
    ),
    "passed on": (
        "def f(q, k, v, hook):\n    w = (q @ k.mT).softmax(-1)\n    hook(w)\n    return w @ v",
        "probabilities",
    ),
    "used after a loop": (
        "def f(q, k, v, n):\n    for _ in range(n):\n        w = (q @ k.mT).softmax(-1)\n        o = w @ v\n"
        "    return o, w",
        "",
    ),
    "a mask of the scores": (
        "def f(q, k, v):\n    s = q @ k.mT\n    s = s.masked_fill(s < 0, float('-inf'))\n    return s.softmax(-1) @ v",
        "computed from",
    ),
    "key overwritten": (
        "def f(q, k, v):\n    s = q @ k.mT\n    k.zero_()\n    return s.softmax(-1) @ v",
        "in between|in place",
    ),
    "value overwritten": (
        "def f(q, k, v):\n    s = (q @ k.mT).softmax(-1)\n    k.mul_(2)\n    return s @ v",
        "in place",
    ),
    "a view of the key overwritten": (
        "def f(q, k, v):\n    s = q @ k.mT\n    t = v.transpose(1, 2)\n    w = s.softmax(-1)\n    t.zero_()\n"
        "    return w @ v",
        "",
    ),
    "the query overwritten by what was computed before": (
        "def f(q, k, v):\n    y = q * 2\n    s = q @ k.mT\n    q.mul_(2)\n    return s.softmax(-1) @ v, y",
        "in place",
    ),
    "scores written to the caller's buffer": (
        "def f(q, k, v, out):\n    out += q @ k.mT\n    return out.softmax(-1) @ v",
        "",
    ),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_would_be_noticed_is_refused(text: str, said: str) -> None:
    found = attention_sites(text)
    assert not any(isinstance(s.verdict, Holds) for s in found)
    if said:
        (site,) = found
        assert isinstance(site.verdict, Fails)
        assert any(part in str(site.verdict.why) for part in said.split("|"))
        assert site.verdict.culprit is not None


ALLOWED = {
    "a shape is read": "def f(q, k, v):\n    s = q @ k.mT\n    n = s.shape[-1]\n    return s.softmax(-1) @ v, n",
    "a dtype is read": (
        "def f(q, k, v):\n    s = q @ k.mT\n    w = s.softmax(-1, dtype=torch.float32).to(s.dtype)\n    return w @ v"
    ),
    "query is used elsewhere": "def f(q, k, v):\n    return (q @ k.mT).softmax(-1) @ v + q",
    "the transposed key is returned": ("def f(q, k, v):\n    t = k.mT\n    return (q @ t).softmax(-1) @ v, t"),
    "value is changed afterwards": "def f(q, k, v):\n    o = (q @ k.mT).softmax(-1) @ v\n    v.zero_()\n    return o",
    "scores are masked in place": (
        "def f(q, k, v, m):\n    s = q @ k.mT\n    s.masked_fill_(m, -1e9)\n    return s.softmax(-1) @ v"
    ),
    "another branch returns": (
        "def f(q, k, v, x=None):\n    if x is not None:\n        return x\n    return (q @ k.mT).softmax(-1) @ v"
    ),
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_what_nobody_notices_is_allowed(text: str) -> None:
    (site,) = attention_sites(text)
    assert isinstance(site.verdict, Holds)


def test_an_unread_sum_is_post_norm_and_a_read_one_is_pre_norm() -> None:
    post = "def f(self, x, y):\n    return F.layer_norm(x + y, (8,), self.w, self.b)"
    pre = "def f(self, x, y):\n    h = x + y\n    return h, F.layer_norm(h, (8,), self.w, self.b)"
    for text, results in ((post, 1), (pre, 2)):
        (defined,) = functions(file_scope(ast.parse(HEAD + text)))
        captured = capture(defined.function, defined.scope, defined.owner)
        (site,) = sites(captured.graph, View(Facts(captured.known)), load_rules())
        assert isinstance(site.verdict, Holds) and len(site.results) == results


def test_a_residual_added_in_place_to_the_caller_is_refused() -> None:
    text = "def f(self, x, y):\n    x += y\n    return F.layer_norm(x, (8,), self.w, self.b)"
    (defined,) = functions(file_scope(ast.parse(HEAD + text)))
    captured = capture(defined.function, defined.scope, defined.owner)
    assert not any(
        isinstance(s.verdict, Holds) for s in sites(captured.graph, View(Facts(captured.known)), load_rules())
    )


def test_a_scale_that_comes_after_the_mask_and_may_be_negative_is_assumed_to_be_positive() -> None:
    text = """
        def f(q, k, v, drop, n):
            s = (q @ k.mT).masked_fill(drop, float("-inf"))
            return (s * (float(n) - 10)).softmax(-1) @ v
    """
    verdicts = [s.verdict for s in attention_sites(text)]
    assert [v.safety for v in verdicts if isinstance(v, Holds)] == ["unsafe"]
