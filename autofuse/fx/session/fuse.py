"""Runs all steps of the FX pass for one model. Each step takes values and returns one.

capture   record how each module is called                       trace/module_calls.py
plan      trace, match and rewrite each forward                  planner.py, rewrite/
check     compare fused and original code in float64             site_checks.py, verify/
time      on a GPU, find what steps wait for                     launch_regime.py
          time fused and original code                           gain_checks.py, site_timing.py
          time whole steps with and without fusion               whole_step.py
install   give each module its new forward                       session.py, install/
check     compare the whole model                                model_check.py
compile   compile the blocks, if requested                       compiling.py
report    list all sites                                         ledger.py
"""

from __future__ import annotations

import logging
from functools import cache, partial

from torch import nn

from autofuse.display.progress import progress_bar, quietly
from autofuse.fx.session.compiling import choose_compilation
from autofuse.fx.session.effort import describe_work
from autofuse.fx.session.gain_checks import keep_faster_sites
from autofuse.fx.session.internal_errors import reason_of_failure
from autofuse.fx.session.launch_regime import note_launch_regime
from autofuse.fx.session.model_check import check_model
from autofuse.fx.session.planner import Planner, plan_calls
from autofuse.fx.session.rank_agreement import follow_rank_0
from autofuse.fx.session.ranks import is_single_rank
from autofuse.fx.session.session import Session
from autofuse.fx.session.whole_step import keep_faster_steps
from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.module_calls import ModelCalls, calls_of
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.reasons.reason import Reason

_LOG = logging.getLogger("autofuse")


def fuse(model: nn.Module, arguments: ForwardArguments, session: Session) -> None:
    """Fuse a model for one kind of call. The model itself does not run.

    Args:
        model: The model.
        arguments: The example arguments of the call.
        session: Installs the plans and keeps the results.
    """
    checker, tune = session.checker, session.options.tune
    with preserve_generators(), progress_bar(f"autofuse: {type(model).__name__}") as show_progress:

        def plan_or_report_failure() -> Planner:
            try:
                return plan_and_check()
            except Exception as error:  # the other ranks wait for a decision
                return _plan_nothing(session, model, reason_of_failure(error, "looking at the model"))

        @cache
        def capture_calls() -> ModelCalls:
            to_check = tuple(session.states) if checker else ()
            return calls_of(model, arguments, to_check, session.options.modes)

        def plan_and_check() -> Planner:
            calls = capture_calls()
            plans = plan_calls(session.rules, session.states, calls.by_mode, show_progress, calls.created_bytes)
            if work := describe_work(plans, calls.real, checker is not None, tune):
                _LOG.info("%s: %s.", type(model).__name__, work)
            session.note_planned(plans, calls.problems)
            session.ledger.training = model.training
            verdicts = checker.check(plans, calls.real, show_progress, calls.real_in_training) if checker else {}
            if tune:
                if is_single_rank():
                    note_launch_regime(model, arguments, plans)
                check_again = (
                    partial(checker.check, plans, calls.real, quietly, calls.real_in_training) if checker else None
                )
                verdicts, slower = keep_faster_sites(plans, verdicts, check_again, show_progress)
                session.note_slower(slower)
                # Ranks could time steps differently and would then disagree.
                if is_single_rank():
                    steps = keep_faster_steps(model, arguments, plans, verdicts, check_again, show_progress)
                    verdicts = steps.verdicts
                    session.note_slower(steps.slower)
                    session.steps = steps.steps
            session.install_plans(plans, verdicts)
            session.capture_uncalled_later(plans)
            if checker and session.report.with_status("fused"):
                for _ in show_progress("checking the whole", [model], 1):
                    session.roll_back_modules(check_model(model, arguments, plans))
            session.install_lazy_heads(model, arguments, plans)
            session.install_lazy_masks(model)
            if wanted := session.options.compile:
                session.compile(model, choose_compilation(model, arguments, plans, show_progress, force=wanted is True))
            return plans

        follow_rank_0(session, plan_or_report_failure)


def _plan_nothing(session: Session, model: nn.Module, why: Reason) -> Planner:
    """Remove all that was installed, and record the reason in the report."""
    session.forget()
    session.note_unread(why)
    planner = Planner(session.rules, session.states, {False: {}, True: {}})
    planner.failed.append((model, why))
    return planner
