"""Each reason of the tracer has a module, with the expected line and advice."""

from __future__ import annotations

import copy
import cProfile
import functools
import pstats
import sys
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import autofuse
from autofuse.fx.trace.paths import Tail
from autofuse.fx.trace.stand_ins import fake_world
from autofuse.fx.trace.tracer import trace_forward
from autofuse.fx.trace.values import Untraceable
from autofuse.reasons import forwards
from autofuse.reasons.table import codes_of
from autofuse.torch_private import FakeTensorMode
from tests.reasons.programs import Holder, Refused, check, make_block, name_of, refused_site

ATTENDS = "p = F.softmax(q @ k.mT, -1)\n"
DEFINITION = "def forward(self, q"  # the line for a finding after the end of the forward

CASES = [
    Refused("forward-assigns", ATTENDS + "self.p = p\nreturn p @ v", "self.p = p", "assign only under a flag"),
    Refused("forward-changes", ATTENDS + "self.maps.append(p)\nreturn p @ v", "self.maps.append", "under a flag of"),
    Refused(
        "forward-registers-buffer",
        ATTENDS + "self.register_buffer('m', q + 1)\nreturn p @ v",
        DEFINITION, "register it in `__init__`",
    ),
    Refused("forward-draws-random", ATTENDS + "return p @ v * random.random()", "random.random()", "draw with torch"),
    Refused("forward-keeps-outside", ATTENDS + "KEPT.append(p)\nreturn p @ v", DEFINITION, "return the value instead"),
    Refused("forward-has-effect", ATTENDS + "print(3)\nreturn p @ v", "", "under a flag of the module"),
    Refused("forward-reads-state", ATTENDS + "self.steps\nreturn p @ v", "", "as an argument"),
    Refused("forward-reads-too-much", ATTENDS + "return p @ v * LARGE['a']", "LARGE['a']", "store the needed part"),
    Refused("forward-reads-dict", ATTENDS + "vars(self)\nreturn p @ v", "vars(self)", "by fixed names"),
    Refused("forward-reads-unreached", ATTENDS + "return p @ v * self.weak().by", "self.weak()", "on the module"),
    Refused(
        "forward-reads-written",
        ATTENDS + "v, _ = self.child(v)\nreturn p @ v * self.child.calls",
        "self.child.calls", "let the child return the value",
    ),
    Refused(
        "forward-reads-other-module",
        ATTENDS + "return p @ v * self.others[0].in_features",
        "in_features", "pass it as an argument, or make that module a child",
    ),
    Refused(
        "forward-uses-childs-number",
        ATTENDS + "v, scale = self.child(v)\nscale = scale + 1\nreturn p @ v * scale",
        "scale + 1", "return a tensor there",
    ),
    Refused("forward-uses-loose-tensor", "return F.softmax(q @ k.mT + SHIFT, -1) @ v", "SHIFT,", "as a buffer"),
    Refused(
        "forward-passes-object",
        ATTENDS + "v, _ = self.child(v, object())\nreturn p @ v",
        "object()", "pass tensors, numbers and flags",
    ),
    Refused(
        "forward-passes-module",
        ATTENDS + "v, _ = self.child(v, self.others[0])\nreturn p @ v",
        "self.others[0])", "pass tensors, numbers and flags",
    ),
    Refused(
        "forward-calls-other-module",
        ATTENDS + "return self.others[0](p @ v)",
        "self.others[0](", "make it a child module",
    ),
    Refused(
        "forward-under-context",
        ATTENDS + "with torch.no_grad():\n    v.mul_(2)\nreturn p @ v",
        "v.mul_", "move that part to a child module",
    ),
    Refused(
        "forward-returns-object",
        ATTENDS + "return p @ v, object()",
        DEFINITION, "return tensors in tuples",
    ),
    Refused(
        "forward-needs-numbers",
        ATTENDS + "if p.sum() > 3:\n    return v\nreturn p @ v",
        "if p.sum()", "with `torch.where` instead of `if`",
    ),
    Refused(
        "forward-takes-number",
        ATTENDS + "same = torch.is_same_size(p, q)\nreturn p @ v if same else v",
        "same = ", "keep it a tensor",
    ),
    Refused("forward-calls-unheld", ATTENDS + "v.requires_grad_()\nreturn p @ v", "v.requires", "to a child module"),
    Refused(
        "forward-asks-gradient",
        ATTENDS + "if p.requires_grad:\n    return v\nreturn p @ v",
        "if p.requires_grad", "use a flag of the module instead",
    ),
    Refused("forward-reads-attribute", ATTENDS + "v.grad_fn\nreturn p @ v", "v.grad_fn", "use torch's operations"),
    Refused(
        "forward-goes-by-type",
        ATTENDS + "if type(self.fc) is torch.nn.Linear:\n    return p @ v\nreturn v",
        "if type(", "use `isinstance`, or `self.__class__`",
    ),
    Refused(
        "forward-asks-tensor-class",
        "if isinstance(self.tag, Tagged):\n    q = q * self.tag\n" + ATTENDS + "return p @ v",
        DEFINITION, "use a flag of the module instead",
    ),
    Refused(
        "forward-raised",
        ATTENDS + "assert q.__class__ is torch.Tensor\nreturn p @ v",
        "", "pass example inputs that the module accepts",
    ),
    Refused(
        "model-raised",
        ATTENDS + "return p @ v + missing",
        "", "pass example inputs that the module accepts",
    ),
    Refused(
        "forward-reads-computed-object",
        ATTENDS + "h = x.other()\nreturn p @ v * h.x",
        "h.x", "pass tensors, numbers and flags, not objects",
    ),
    Refused(
        "forward-compares-argument",
        "if x is KEPT:\n    return v\n" + ATTENDS + "return p @ v",
        "", "use a flag",
    ),
    Refused("forward-asks-object", ATTENDS + "del x.x\nreturn p @ v", "del x.x", "not objects"),
    Refused(
        "forward-reads-changed-object",
        ATTENDS + "x.change()\nreturn p @ v * x.x",
        "* x.x", "read it before the object is changed",
    ),
    Refused(
        "forward-stores-own",
        ATTENDS + "x.x = self.maps\nreturn p @ v",
        "x.x = self.maps", "store tensors and numbers",
    ),
    Refused(
        "forward-stores-under-object",
        ATTENDS + "x.options[q] = v\nreturn p @ v",
        DEFINITION, "use strings or numbers as keys",
    ),
]  # fmt: skip
AT_FIRST_CALL = [  # such an argument is only possible in a call of the user, not among example inputs
    Refused(
        "forward-calls-object", ATTENDS + "x.log(p)\nreturn p @ v", "x.log(p)", "in the module that calls this one"
    ),
    Refused(
        "forward-uses-unseen", ATTENDS + "x.hook(p)\nreturn p @ v", "x.hook(p)", "in the module that calls this one"
    ),
]
BY_HAND = {  # the tests below
    "forward-replaced", "class-keeps-forward", "forward-ends-after-dropout", "symbolic-size", "forward-calls-scripted",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_reason_has_its_code_its_line_and_its_advice(case: Refused) -> None:
    check(refused_site(case, Holder(x=1, options={"b": 2})), case)


@pytest.mark.parametrize("case", AT_FIRST_CALL, ids=name_of)
def test_an_argument_that_a_trace_cannot_use_is_refused_at_the_call(case: Refused) -> None:
    block = autofuse.optimize(make_block(case))
    seen_types: list[str] = []
    block(*torch.randn(3, 2, 4, 8), Holder(hook=lambda t: seen_types.append(type(t).__name__)))
    refused_sites = [s for s in autofuse.report(block).sites if s.reason_code == case.code]
    check(max(refused_sites, key=lambda s: s.value_line or 0), case)
    assert seen_types in ([], ["Tensor"])


# A running function and its closure always exist, so the first never occurs. The second has its own test.
NEVER_SEEN = {"forward-runs-unknown", "profiler-active"}


class _Profiler:
    """A profiler that is no function, as one that is written in C."""

    def __call__(self, *event: Any) -> None:
        """Ignores the event."""


def test_nothing_is_captured_while_another_profiler_is_active() -> None:
    block, inputs = make_block(Refused("", ATTENDS + "return p @ v")), tuple(torch.randn(3, 2, 4, 8))
    sys.setprofile(_Profiler())
    try:
        autofuse.optimize(block, inputs, tune=False)
    finally:
        sys.setprofile(None)
    assert {s.reason_code for s in autofuse.report(block)} >= {"profiler-active"}
    assert not autofuse.report(block).with_status("fused")
    block(*inputs)
    assert autofuse.report(block).with_status("fused")


def test_cprofile_continues_counting_and_forbids_a_capture_only_where_it_takes_the_place_of_the_watcher() -> None:
    # From Python 3.12 on, cProfile uses sys.monitoring, and both can be active.
    block, inputs = make_block(Refused("", ATTENDS + "return p @ v")), tuple(torch.randn(3, 2, 4, 8))
    with cProfile.Profile() as profile:
        autofuse.optimize(block, inputs, tune=False)
        fused = bool(autofuse.report(block).with_status("fused"))
        before = sys.getprofile()
        block(*inputs)
    assert fused is (sys.version_info >= (3, 12)) is (before is None)
    assert any(name == "forward" for _, _, name in pstats.Stats(profile).stats)  # type: ignore[attr-defined]


def test_every_reason_of_the_tracer_has_a_module() -> None:
    assert {c.code for c in (*CASES, *AT_FIRST_CALL)} | BY_HAND | NEVER_SEEN == {c.name for c in codes_of(forwards)}


def test_a_forward_on_the_instance_is_refused() -> None:
    block = make_block(Refused("", ATTENDS + "return p @ v"))
    block.forward = lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v
    (site,) = autofuse.report(autofuse.optimize(block, tuple(torch.randn(3, 2, 4, 8)))).sites
    assert (site.reason_code, site.advice) == ("forward-replaced", "define `forward` on the class")


class Double(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(q).flatten(0, 1)).view_as(q)


class Attends(torch.nn.Module):
    def __init__(self, child: torch.nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return self.child(torch.softmax(q @ q.mT, -1) @ q)


@pytest.mark.parametrize("example", [True, False])
def test_a_module_that_calls_a_scripted_one_is_refused_and_its_siblings_are_fused(example: bool) -> None:
    scripted: Any = torch.jit.script(Double())
    model, q = torch.nn.Sequential(Attends(scripted), Attends(torch.nn.Identity())), torch.randn(2, 4, 8)
    plain = copy.deepcopy(model)
    autofuse.optimize(model, q if example else None, tune=False)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    torch.testing.assert_close(model(q), plain(q))
    torch.testing.assert_close(model(q), plain(q))
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    sites = {s.module: (s.status, s.reason_code) for s in autofuse.report(model)}
    assert sites == {"0": ("declined", "forward-calls-scripted"), "1": ("fused", "")}


class Sealed(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError("this class is finished")


class Finished(torch.nn.Module, metaclass=Sealed):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ q.mT, -1) @ q


class Partial(torch.nn.Module):
    def attend(self, scale: float, q: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ q.mT * scale, -1) @ q

    forward = functools.partialmethod(attend, 0.5)


@pytest.mark.parametrize("example", [True, False])
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Finished, "its class, Finished, does not let its attributes be set"),
        (Partial, "its class, Partial, has a partialmethod for its forward, not a function"),
    ],
)
def test_a_class_with_a_fixed_forward_stays(kind: Any, why: str, example: bool) -> None:
    q, forward = torch.randn(2, 4, 4), vars(kind)["forward"]
    model = autofuse.optimize(kind(), q if example else None)
    assert torch.equal(model(q), kind()(q)) and vars(kind)["forward"] is forward
    (site,) = autofuse.report(model).sites
    assert why in site.reason
    assert (site.reason_code, site.status) == ("class-keeps-forward", "declined")
    assert site.advice == "define `forward` as a function, in a class that allows assignment to its attributes"


def untraceable(body: str, *args: Any, dropped: Any = frozenset()) -> Untraceable:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with pytest.raises(Untraceable) as error:
        trace_forward(make_block(Refused("by hand", body)), args, {}, fake_world(mode), mode, dropped)
    return error.value


def test_a_step_after_the_dropout_of_a_child_is_refused() -> None:
    q, k, v = torch.randn(3, 2, 4, 8)
    error = untraceable(ATTENDS + "return self.fc(p @ v) + 1", q, k, v, dropped=frozenset({(Tail("fc"),)}))
    assert error.reason.code == forwards.DROPOUT_NOT_LAST and error.place is not None
    assert error.reason.advice() == "make the dropout the last step"


def test_the_refusal_of_a_symbolic_size_names_it() -> None:
    size = ShapeEnv().create_unbacked_symint()
    error = untraceable("return q.view(k)", torch.randn(4), size, None)
    assert str(error) == "k is a symbolic size: optimize before compiling"
    assert error.reason.code == forwards.SYMBOLIC_SIZE and not error.reason.advice()
