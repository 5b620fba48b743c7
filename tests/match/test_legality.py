"""A match is declined if the program would notice the replacement, with the reason and the culprit."""

from __future__ import annotations

import ast
import textwrap

import pytest

from autofuse.canonical import View
from autofuse.ir.facts import Facts
from autofuse.ir.graph import CALL, PARAMETER, Graph, Value
from autofuse.loading.registry import load_rules
from autofuse.match.engine import sites
from autofuse.match.legality import is_metadata, memory_of, written_after, written_between, written_in_place
from autofuse.match.site import Site
from autofuse.reasons import matches
from autofuse.reasons.reason import Code
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
    "printed": ("def f(q, k, v):\n    s = q @ k.mT\n    print(s)\n    return s.softmax(-1) @ v", "matrix product"),
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
def test_a_match_whose_replacement_would_be_noticed_is_declined(text: str, said: str) -> None:
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
def test_a_match_without_visible_intermediate_values_is_allowed(text: str) -> None:
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


def test_an_in_place_residual_add_to_an_argument_is_declined() -> None:
    text = "def f(self, x, y):\n    x += y\n    return F.layer_norm(x, (8,), self.w, self.b)"
    (defined,) = functions(file_scope(ast.parse(HEAD + text)))
    captured = capture(defined.function, defined.scope, defined.owner)
    assert not any(
        isinstance(s.verdict, Holds) for s in sites(captured.graph, View(Facts(captured.known)), load_rules())
    )


def test_a_scale_after_the_mask_of_unknown_sign_is_assumed_to_be_positive() -> None:
    text = """
        def f(q, k, v, drop, n):
            s = (q @ k.mT).masked_fill(drop, float("-inf"))
            return (s * (float(n) - 10)).softmax(-1) @ v
    """
    verdicts = [s.verdict for s in attention_sites(text)]
    assert [v.safety for v in verdicts if isinstance(v, Holds)] == ["unsafe"]


# Reads and views in program order, and the reason to decline the match; None if it may be replaced.
_HEAD = "def f(self, q, k, v, m, z):\n"
JUDGED = {
    "the key is passed to what may write it": (
        "s = q @ k.mT\nz(k)\nreturn s.softmax(-1) @ v",
        matches.OPERAND_PASSED_ON,
    ),
    "a view of the key is": ("s = q @ k.mT\nz(k[0])\nreturn s.softmax(-1) @ v", matches.OPERAND_PASSED_ON),
    "a method of the key may write it": (
        "s = q @ k.mT\nk.update()\nreturn s.softmax(-1) @ v",
        matches.OPERAND_WRITTEN,
    ),
    "the value is passed to what may write it before it is read": (
        "w = (q @ k.mT).softmax(-1)\nz(v)\nreturn w @ v",
        matches.OPERAND_PASSED_ON,
    ),
    "what gives something is taken to write nothing": (
        "s = q @ k.mT\nn = z(k)\nreturn s.softmax(-1) @ v, n",
        None,
    ),
    "it is passed on before": ("z(k)\ns = q @ k.mT\nreturn s.softmax(-1) @ v", None),
    "it is passed on behind": ("s = q @ k.mT\no = s.softmax(-1) @ v\nz(k)\nreturn o", None),
    "a copy is passed on": ("s = q @ k.mT\nz(k * 2)\nreturn s.softmax(-1) @ v", None),
    "another is passed on": ("s = q @ k.mT\nz(m)\nreturn s.softmax(-1) @ v", None),
    "the key is written in between": (
        "s = q @ k.mT\nk.add_(1)\nreturn s.softmax(-1) @ v",
        matches.OPERAND_WRITTEN,
    ),
    "a view of the key is written in between": (
        "s = q @ k.mT\nk[0].add_(1)\nreturn s.softmax(-1) @ v",
        matches.OPERAND_WRITTEN,
    ),
    "the key is written before": ("k.add_(1)\ns = q @ k.mT\nreturn s.softmax(-1) @ v", None),
    "another is written in between": ("s = q @ k.mT\nm.add_(1)\nreturn s.softmax(-1) @ v, m", None),
    "the result is written": (
        "o = (q @ k.mT).softmax(-1) @ v\no.add_(1)\nreturn o",
        matches.RESULT_WRITTEN,
    ),
    "a view of the result is written": (
        "o = (q @ k.mT).softmax(-1) @ v\no[0].add_(1)\nreturn o",
        matches.RESULT_WRITTEN,
    ),
    "a copy of the result is written": (
        "o = (q @ k.mT).softmax(-1) @ v\np = o.clone()\np.add_(1)\nreturn o, p",
        None,
    ),
    "a gradient of the probabilities is watched": (
        "w = (q @ k.mT).softmax(-1)\nw.register_hook(z)\nreturn w @ v",
        matches.VALUE_USED_BY,
    ),
    "a gradient of the turned key is watched": (
        "t = k.mT\nt.register_hook(z)\nreturn (q @ t).softmax(-1) @ v",
        matches.VALUE_HOOKED,
    ),
    "a gradient of the turned key is kept": (
        "t = k.mT\nt.retain_grad()\nreturn (q @ t).softmax(-1) @ v",
        matches.VALUE_HOOKED,
    ),
    "a gradient of the key is watched": ("k.register_hook(z)\nreturn (q @ k.mT).softmax(-1) @ v", None),
    "the turned key is used by a method": (
        "t = k.mT\nn = t.count()\nreturn (q @ t).softmax(-1) @ v, n",
        None,
    ),
    "the turned key is passed on": ("t = k.mT\nn = z(t)\nreturn (q @ t).softmax(-1) @ v, n", None),
    "the mask is made of the probabilities": (
        "s = q @ k.mT\nw = s.softmax(-1)\ns = s + w.mean()\nreturn s.softmax(-1) @ v",
        matches.OPERAND_FROM_REMOVED,
    ),
    "the mask has the shape of the scores": (
        "s = q @ k.mT\ns = s.masked_fill(torch.ones(s.shape[-1], s.shape[-1]).triu(1) > 0, float('-inf'))\n"
        "return s.softmax(-1) @ v",
        None,
    ),
    "the dtype of the probabilities is returned": ("w = (q @ k.mT).softmax(-1)\nreturn w @ v, w.dtype", None),
    "whether there are probabilities": ("w = (q @ k.mT).softmax(-1)\nreturn w @ v, w is None", None),
    "an entry of the probabilities is returned": (
        "w = (q @ k.mT).softmax(-1)\nreturn w @ v, w[0]",
        matches.VALUE_RETURNED,
    ),
}


@pytest.mark.parametrize(("body", "code"), JUDGED.values(), ids=JUDGED)
def test_a_match_is_judged_by_reads_and_writes_of_its_memory(body: str, code: Code | None) -> None:
    (site,) = attention_sites(_HEAD + textwrap.indent(body, "    "))
    if code is None:
        assert isinstance(site.verdict, Holds)
    else:
        assert isinstance(site.verdict, Fails) and not isinstance(site.verdict.why, str)
        assert site.verdict.why.code is code


# Expressions that share the memory of q, and expressions that do not.
SHARED = "q q.mT q.view(2,3) q.T q.data q.H q.real q.detach() q.flatten() q.squeeze() q.contiguous() q[0] q[:2] q.t()"
SHARED += " q.chunk(2) q.detach().mT[0] torch.flatten(q) torch.narrow(q,0,1,2) q.requires_grad_() torch.detach(q)"
SHARED += " q.unflatten(0,(2,3)).movedim(0,1) q[0][1] q.narrow(0,1,2)"
OWN = "q*2 q.clone() q.softmax(-1) q.chunk(2)[0] q.split(2)[1] q.unbind(0)[0] q.shape q.grad q.__len__() q.parts()[0]"
OWN += " q.count() k.detach() k torch.flatten() torch.flatten(k,q) torch.narrow(k,q,1,2) k[q]"


def program(expression: str) -> tuple[Value, Value]:
    """The values of an expression and of `q`."""
    (defined,) = functions(file_scope(ast.parse(HEAD + f"def f(q, k):\n    return {expression}, q")))
    returned = capture(defined.function, defined.scope).returned
    assert returned is not None
    return returned.inputs[0], returned.inputs[1]


@pytest.mark.parametrize("expression", SHARED.split())
def test_views_share_memory(expression: str) -> None:
    v, q = program(expression)
    assert q in memory_of(v) and v in memory_of(v)


@pytest.mark.parametrize("expression", OWN.split())
def test_a_computed_value_has_its_own_memory(expression: str) -> None:
    v, q = program(expression)
    assert q not in memory_of(v) and v in memory_of(v)


def test_a_traced_call_of_a_view_shares_the_memory_of_its_first_argument() -> None:
    graph = Graph()
    q = graph.value(PARAMETER, data="q")
    viewed, counted = (graph.fresh(CALL, q, data=(f"torch.Tensor.{name}", ())) for name in ("detach", "count"))
    assert memory_of(viewed) == [viewed, q]
    assert memory_of(counted) == [counted]


@pytest.mark.parametrize(
    ("expression", "metadata"),
    [("q.shape", True), ("q.dtype", True), ("q.size(0)", True), ("q is None", True), ("q.data", False), ("q", False)],
)
def test_metadata_does_not_depend_on_the_contents(expression: str, metadata: bool) -> None:
    assert is_metadata(program(expression)[0]) is metadata


def test_methods_that_end_in_one_underscore_write_in_place() -> None:
    assert [written_in_place(n) for n in ("relu_", "relu", "__len__", "_")] == [True, False, False, True]


@pytest.mark.parametrize(
    ("target", "at", "own", "refused"),
    [
        ("operand", "between", False, True),
        ("view", "between", False, True),
        ("other", "between", False, False),
        ("operand", "before", False, False),
        ("operand", "behind", False, False),
        ("operand", "between", True, False),
    ],
)
def test_an_operand_must_not_be_overwritten_between_the_first_step_and_the_last(
    target: str, at: str, own: bool, refused: bool
) -> None:
    graph = Graph()
    x, other = graph.value(PARAMETER, data="x"), graph.value(PARAMETER, data="y")
    targets = {"operand": x, "view": graph.value("mT", x), "other": other}
    written = []
    for place in ("before", "between", "behind"):
        if place == at:
            written.append(graph.fresh("add", targets[target], other))
            graph.write(targets[target], written[0])
        if place == "before":
            first = graph.value("exp", x)
        if place == "between":
            result = graph.value("sum", first)
    graph.values.append(graph.fresh("neg", result))
    results = (written[0], result) if own else (result,)
    found = written_between(graph, frozenset({x}), first.serial, results)
    assert (found is not None) is refused
    if found is not None:
        assert found.culprit is targets[target] and found.use is written[0]


def test_a_result_must_not_be_overwritten_but_by_another_result() -> None:
    graph = Graph()
    x = graph.value(PARAMETER, data="x")
    result = graph.value("exp", x)
    written = graph.fresh("add", result, x)
    graph.write(result, written)
    assert written_after(graph, (x,)) is None
    assert written_after(graph, (result, written)) is None
    found = written_after(graph, (result,))
    assert found is not None and (found.culprit, found.use) == (result, written)
