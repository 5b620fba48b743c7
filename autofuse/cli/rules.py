"""`autofuse rules` and `autofuse explain`: the rules as documentation. Needs no torch."""

from __future__ import annotations

import json
from argparse import Namespace

from autofuse.cli.error_reports import report_errors
from autofuse.cli.output import DONE, FAILED, FINDINGS, Output
from autofuse.cli.rules_check import find_failures, own_rules, summary
from autofuse.cli.rules_text import as_json, explain_rule, list_rules
from autofuse.loading.selection import select_rules
from autofuse.project.project_rules import load_project_rules
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import rewrite_text


def explain(options: Namespace) -> int:
    """Prints the explanation of each rule, with its examples."""
    out = Output()
    with report_errors(out) as errors:
        for rule in select_rules(load_project_rules(_permission(options, out)), options.codes):
            out.write(explain_rule(rule, rewrite_text))
    return FAILED if errors else DONE


def rules(options: Namespace) -> int:
    """Lists the rules, or tests the user's own rules."""
    out = Output()
    if options.check:
        return _check_rules(options, out)
    with report_errors(out) as errors:
        if options.folders:
            out.say(
                "autofuse: only `autofuse rules --check` takes folders; [tool.autofuse] names this project's rules."
            )
            return FAILED
        loaded = load_project_rules(_permission(options, out))
        out.write(
            [(json.dumps(as_json(loaded), indent=2) + "\n", "")] if options.format == "json" else list_rules(loaded)
        )
    return FAILED if errors else DONE


def _permission(options: Namespace, out: Output) -> RulesPermission:
    return RulesPermission(out.say, out.say, options.allow_rules)


def _check_rules(options: Namespace, out: Output) -> int:
    """Tests the examples of the user's own rules. Returns FINDINGS if an example fails."""
    all_failures = list[str]()
    with report_errors(out) as errors:
        tested = own_rules(options.folders, _permission(options, out))
        if not tested:
            out.say(
                "autofuse: this project has no rules of its own. Name a folder: `autofuse rules --check my_rules/`."
            )
            return FAILED
        for rule in tested:
            rule_failures = list(find_failures(rule))
            all_failures += rule_failures
            out.write([(f"{failure}\n", "bold red") for failure in rule_failures] if rule_failures else summary(rule))
    return FAILED if errors else FINDINGS if all_failures else DONE
