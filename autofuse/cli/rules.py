"""`autofuse rules` and `autofuse explain`: the rules as documentation. Needs no torch."""

from __future__ import annotations

import json
from argparse import Namespace

from autofuse.cli.output import DONE, FAILED, Output
from autofuse.cli.rules_text import as_json, explained, listed
from autofuse.cli.sentences import sentences
from autofuse.loading.selection import selected
from autofuse.project.rules_here import rules_here
from autofuse.project.run import rewritten


def explain(options: Namespace) -> int:
    """Print what each of the rules does, with its examples."""
    out = Output()
    with sentences(out) as told:
        for rule in selected(rules_here(), options.codes):
            out.write(explained(rule, rewritten))
    return FAILED if told else DONE


def rules(options: Namespace) -> int:
    """List the rules."""
    out = Output()
    with sentences(out) as told:
        found = rules_here()
        out.write([(json.dumps(as_json(found), indent=2) + "\n", "")] if options.format == "json" else listed(found))
    return FAILED if told else DONE
