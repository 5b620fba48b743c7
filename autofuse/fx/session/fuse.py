"""One model through the live door, from its calls to its report. Each step takes values and returns one.

capture   how the model's modules are called                     trace/module_calls.py
plan      each module's forward traced, matched and rewritten    planner.py, rewrite/
check     rewritten against original, in double precision        site_checks.py, verify/
weigh     rewritten against original, by the clock               gain_checks.py, site_timing.py
          whole steps, with what was fused and without           whole_step.py
install   a new forward for each module                          session.py, install/
check     the whole model                                        model_check.py
compile   the model's blocks, where that is asked for             compiling.py
report    what was found, place by place                         ledger.py
"""

from __future__ import annotations

import logging
from functools import cache, partial

from torch import nn

from autofuse.display.progress import progress_bar, quietly
from autofuse.fx.session.compiling import choose
from autofuse.fx.session.effort import effort
from autofuse.fx.session.gain_checks import keep_faster_places
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.model_check import check_model
from autofuse.fx.session.planner import Planner, plan_calls
from autofuse.fx.session.rank_agreement import decide_as_rank_0_does
from autofuse.fx.session.ranks import alone
from autofuse.fx.session.session import Session
from autofuse.fx.session.whole_step import keep_faster_steps
from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.module_calls import ModelCalls, calls_of
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.reasons.reason import Reason

_LOG = logging.getLogger("autofuse")


def fuse(model: nn.Module, arguments: ForwardArguments, session: Session) -> None:
    """Fuse what can be fused in `model`, as it is when it is called with `arguments`. The model itself is not run."""
    checker, tune = session.checker, session.options.tune
    with preserve_generators(), progress_bar(f"autofuse: {type(model).__name__}") as tell:

        def decide() -> Planner:
            try:
                return decided()
            except Exception as error:  # the other ranks hear of it, too: they wait for what this one decides
                return _nothing(session, model, reason_of_failure(error, "looking at the model"))

        @cache
        def called() -> ModelCalls:
            return calls_of(model, arguments, to_check=tuple(session.states) if checker else ())

        def decided() -> Planner:
            calls = called()
            plans = plan_calls(session.rules, session.states, calls.by_mode, tell, calls.created_bytes)
            if ahead := effort(plans, calls.real, checker is not None, tune):
                _LOG.info("%s: %s.", type(model).__name__, ahead)
            session.remember(plans, calls.problems)
            session.ledger.training = model.training
            verdicts = checker.check(plans, calls.real, tell) if checker else {}
            if tune:
                again = partial(checker.check, plans, calls.real, quietly) if checker else None
                verdicts, slower = keep_faster_places(plans, verdicts, again, tell)
                session.note_slower(slower)
                if alone():
                    steps = keep_faster_steps(model, arguments, plans, verdicts, again, tell)
                    verdicts = steps.verdicts
                    session.note_slower(steps.slower)
                    session.steps = steps.steps
            session.adopt(plans, verdicts)
            session.arm_uncalled(plans)
            if checker and session.report.with_status("fused"):
                for _ in tell("checking the whole", [model], 1):
                    session.take_back(check_model(model, arguments, plans))
            session.adopt_heads(model, arguments, plans)
            session.adopt_masks(model)
            if wanted := session.options.compile:
                session.compile(model, choose(model, arguments, plans, tell, force=wanted is True))
            return plans

        decide_as_rank_0_does(session, decide)


def _nothing(session: Session, model: nn.Module, why: Reason) -> Planner:
    """Everything runs as it was written, and the report says why."""
    session.forget()
    session.note_unread(why)
    planner = Planner(session.rules, session.states, {False: {}, True: {}})
    planner.failed.append((model, why))
    return planner
