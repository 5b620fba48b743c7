"""`autofuse rules` and `autofuse explain`: the rules as documentation. Needs no torch."""

from __future__ import annotations

import json
from argparse import Namespace

from autofuse.cli.output import DONE, FAILED, FINDINGS, Output
from autofuse.cli.rules_check import failures, own_rules, summary
from autofuse.cli.rules_text import as_json, explained, listed
from autofuse.cli.sentences import sentences
from autofuse.loading.selection import selected
from autofuse.project.rules_here import rules_here
from autofuse.project.rules_permission import RulesPermission
from autofuse.project.run import rewritten


def explain(options: Namespace) -> int:
    """Print what each of the rules does, with its examples."""
    out = Output()
    with sentences(out) as told:
        for rule in selected(rules_here(_permission(options, out)), options.codes):
            out.write(explained(rule, rewritten))
    return FAILED if told else DONE


def rules(options: Namespace) -> int:
    """List the rules, or try those of the user's own."""
    out = Output()
    if options.check:
        return _checked(options, out)
    with sentences(out) as told:
        if options.folders:
            out.say("autofuse: folders are for `autofuse rules --check`; [tool.autofuse] says which rules hold here.")
            return FAILED
        found = rules_here(_permission(options, out))
        out.write([(json.dumps(as_json(found), indent=2) + "\n", "")] if options.format == "json" else listed(found))
    return FAILED if told else DONE


def _permission(options: Namespace, out: Output) -> RulesPermission:
    return RulesPermission(out.say, out.say, options.allow_rules)


def _checked(options: Namespace, out: Output) -> int:
    """Try the examples of the user's own rules. FINDINGS where one is not as it says."""
    failed = list[str]()
    with sentences(out) as told:
        own = own_rules(options.folders, _permission(options, out))
        if not own:
            out.say(
                "autofuse: there are no rules of your own here. Name their folder: `autofuse rules --check my_rules/`."
            )
            return FAILED
        for rule in own:
            wrong = list(failures(rule))
            failed += wrong
            out.write([(f"{w}\n", "bold red") for w in wrong] if wrong else summary(rule))
    return FAILED if told else FINDINGS if failed else DONE
