"""One file -> findings: a byte prefilter, then capture and the engine for each function.

Knows statuses and messages. Knows nothing of how an edit is made (place/edits.py, write/file_edits.py).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from autofuse.canonical import PERMUTE, View
from autofuse.ir.facts import Facts
from autofuse.ir.graph import Value
from autofuse.match.choice import chosen, extent
from autofuse.match.engine import every_site
from autofuse.match.pattern import LoadedRule
from autofuse.match.refusals import Refusal, refusal
from autofuse.match.site import Site
from autofuse.reasons import matches, writing
from autofuse.reasons.reason import because
from autofuse.results.findings import Finding
from autofuse.rule import Fails, Holds, Unknown, Verdict
from autofuse.source.capture.captured import CapturedFunction, Chain, ValuePosition
from autofuse.source.capture.function_capture import capture
from autofuse.source.capture.lambdas import expression_functions, is_expression
from autofuse.source.capture.lasting_imports import imports_torch
from autofuse.source.capture.parsed_files import PARSED
from autofuse.source.capture.scope import Defined, FileScope, file_scope, functions
from autofuse.source.capture.symbolic_lengths import record_lengths
from autofuse.source.capture.toplevel import SYMBOL, top_level
from autofuse.source.evidence import Claim, examined, read_as
from autofuse.source.evidence.given_files import ProjectFiles
from autofuse.source.find.by_callers import read_by_callers
from autofuse.source.find.call_rules import CallSite, call_sites, may_concern
from autofuse.source.find.landmarks import Landmarks
from autofuse.source.find.left_unused import left_unused
from autofuse.source.find.proposal import Proposal, declined
from autofuse.source.find.unread import FileReading, UnreadFunction
from autofuse.source.find.unwanted import IN_TESTS, FileOfEdits, generator_of, helper_of, unwanted
from autofuse.source.find.words import hints_of
from autofuse.source.place.author_text import written
from autofuse.source.place.conflicts import Footprint, footprint
from autofuse.source.place.edits import Edit, span_of
from autofuse.source.place.placement import Placement
from autofuse.source.targets import DEFAULT, NotInTarget
from autofuse.source.targets.express import Unwritable, places_of, root_places
from autofuse.source.targets.printing import SourceText

_LAYOUT = frozenset("transpose mT permute rearrange view contiguous expand unsqueeze".split())


def proposals(
    source: bytes,
    path: str,
    *,
    rules: Sequence[LoadedRule],
    target: str = DEFAULT,
    unread: list[UnreadFunction] | None = None,
    only: Collection[str] | None = None,
    files: ProjectFiles | None = None,
    generated: bool = False,
) -> list[Proposal]:
    """What autofuse would do to one file, in the order of its lines. Raises SyntaxError if it does not parse.

    With `generated`, files that a generator made are edited like others.
    Functions that cannot be read are left alone, and added to `unread`. With `only`, other symbols are not read.
    `files` are those of the project, as far as they are given: they may show that other code runs than stands here.
    """
    if b"torch" not in source:
        return []
    if files is not None:
        files.make_room()
    else:
        PARSED.look_again()
    tree = PARSED.tree(source, path) if path else ast.parse(source)  # so that a syntax error is told in any case
    if not imports_torch(tree):
        return []
    of_calls = [r for r in rules if may_concern(r, source)]
    of_dataflow = tuple(r for r in rules if r.change is None)
    hints = hints_of(of_dataflow)
    if not of_calls and not hints.search(source):
        return []
    reading = FileReading(len(source), unread)
    scope = replace(PARSED.scope(source, path), elsewhere={}) if path else file_scope(tree)
    text = SourceText(source)
    found: list[Proposal] = []
    about = FileOfEdits(path, "" if generated else generator_of(source))
    defined = list(functions(scope))
    landmarks = Landmarks(scope, text, defined, hints)
    inner = [f for d in defined if landmarks.mentioned(d.function) for f in expression_functions(d)]
    for d in filter(None, (*defined, *inner, top_level(scope))):
        if only is not None and d.symbol not in only or not landmarks.near(d.function):
            continue
        read = partial(_in_function, d, _Door(text, path, of_dataflow, target, files, about=about))
        found += reading.read(read, d.function.lineno, d.symbol, text.size_of(d.function))
    found = _by_helpers(found)
    if of_calls:
        read = partial(_of_calls, scope, of_calls, path, only)
        found += reading.read(read, 1, "what its calls are given", len(source))
        found = [_not_generated(p, about) for p in found]
    return sorted(_each_once(found), key=lambda p: (p.finding.line, p.finding.column, p.finding.code))


def _each_once(found: list[Proposal]) -> list[Proposal]:
    """The proposals without refusals that read the same: a rule may miss one place in two ways."""
    refused = {p.finding: p for p in reversed(found) if p.edit is None}
    return [p for p in found if p.edit is not None or refused[p.finding] is p]


def _by_helpers(found: list[Proposal]) -> list[Proposal]:
    """Of a helper and its only caller that would each be edited, the helper is: else it would be left uncalled."""
    safe = [p.finding for p in found if p.edit is not None and p.finding.status == "safe"]
    return [_left_to_helper(p, safe) if p.helpers else p for p in found]


def _left_to_helper(p: Proposal, safe: list[Finding]) -> Proposal:
    for name, first, last in p.helpers:
        if any(f.code == p.finding.code and first <= f.line <= last for f in safe):
            return declined(p, because(writing.HELPER_UNCALLED, name=name))
    return p


def _of_calls(scope: FileScope, rules: Sequence[LoadedRule], path: str, only: Collection[str] | None) -> list[Proposal]:
    return [_of_call(s, path) for s in call_sites(scope, rules) if only is None or s.symbol in only]


def _of_call(site: CallSite, path: str) -> Proposal:
    """The finding for a call, with the edit of its arguments if there is one."""
    call, rule = site.call, site.rule.rule
    told = _told_of_call(site.verdict)
    finding = Finding(
        rule.code, rule.__name__, path, call.lineno, call.end_lineno or call.lineno, call.col_offset + 1, site.symbol,
        _status(site.verdict), _message_of_call(site), told.reason, told.advice,
        reason_code=told.code,
    )  # fmt: skip
    additions = tuple((span_of(call), name, text) for name, text in site.added)
    omissions = tuple((span_of(call), span_of(value)) for value in site.omitted)
    return Proposal(finding, Edit((), additions=additions, omissions=omissions) if additions or omissions else None)


def _not_generated(p: Proposal, about: FileOfEdits) -> Proposal:
    """A finding for a call, declined where its file is generated."""
    if not about.generated or p.edit is None:
        return p
    return declined(p, because(writing.GENERATED_FILE, name=about.generated))


def _told_of_call(verdict: Verdict) -> Refusal:
    """What to say of a call: the advice stands alone, as there is nothing to be fused."""
    if isinstance(verdict, Holds):
        return Refusal(verdict.why)
    reason = verdict.reason
    return Refusal(str(reason), verdict.advice or reason.advice(), code=reason.code.name)


def _message_of_call(site: CallSite) -> str:
    title, why = _title(site.rule), site.verdict.why
    if isinstance(site.verdict, Fails):
        return f"{title}, not rewritten: {why}"
    if not isinstance(site.verdict, Holds):
        return f"{title}: {why}"
    added = ", ".join(f"{name}={text}" for name, text in site.added)
    removed = ", ".join(f"{name}={text}" for name, text in site.rule.change.removed) if site.rule.change else ""
    change = f"can be given {added}" if added else f"can do without {removed}"
    return f"{title}: {change}" + (f" ({why})" if why else "")


def _status(verdict: Verdict) -> str:
    return verdict.safety if isinstance(verdict, Holds) else "declined" if isinstance(verdict, Fails) else "report"


def _title(rule: LoadedRule) -> str:
    return (rule.rule.__doc__ or rule.rule.__name__).splitlines()[0].rstrip(".")


@dataclass(frozen=True)
class _Door:
    """What all functions of one file are read with. `asked`: a function is read anew to see if this edit comes out."""

    text: SourceText
    path: str
    rules: tuple[LoadedRule, ...]
    target: str
    files: ProjectFiles | None = None
    asked: Edit | None = None
    about: FileOfEdits = field(default_factory=lambda: FileOfEdits(""))


def _in_function(d: Defined, door: _Door) -> list[Proposal]:
    found = _as_it_stands(d, door)
    if door.asked is not None or is_expression(d.function):
        return found
    return read_by_callers(found, d, door.files, lambda other: _as_it_stands(other, door))


def _as_it_stands(d: Defined, door: _Door) -> list[Proposal]:
    text, path, rules, target = door.text, door.path, door.rules, door.target
    captured = capture(d.function, d.scope, d.owner, d.me, d.given)
    sizes = record_lengths(captured)
    view = View(Facts(captured.known))
    seen = replace(d.scope, qualified={}) if d.symbol == SYMBOL else d.scope  # there, a name holds what it does so far
    importing = partial(door.files.asking_layouts, d.scope) if door.files is not None else tuple[FileScope, ...]
    placement = Placement(text, captured, view, sizes, seen, target, d.owner, importing=importing)
    edits: dict[tuple[int, Value], Edit | Verdict] = {}

    def usable(site: Site) -> bool:
        if _only_follows(view, site.root) or _place(captured, site) is None:
            return False
        edits[_key(site)] = _edit(placement, site)
        return isinstance(edits[_key(site)], Edit)

    made = dict[tuple[int, Value], Proposal]()

    def proposed(site: Site) -> Proposal:
        key = _key(site)
        if key not in made:
            made[key] = _made(site)
        return made[key]

    def _made(site: Site) -> Proposal:
        outcome = edits.get(_key(site), site.verdict)
        assumed, through, helpers = tuple[str, ...](), "", tuple[tuple[str, int, int], ...]()
        if isinstance(outcome, Edit) and isinstance(site.verdict, Holds):
            again = None if door.asked else _Again(outcome, replace(door, rules=(site.rule,)), d)
            claim = Claim(site, outcome, captured, view, d, target, door.files, again)
            answer, through = examined(claim), read_as(claim)
            outcome, assumed = (answer, ()) if isinstance(answer, Fails) else (outcome, answer)
            if isinstance(outcome, Edit):
                operation = site.rule.replacement.operation
                assumed = (*assumed, *([IN_TESTS] if door.about.of_tests else ()))
                unused = left_unused(outcome, d)
                helpers = tuple((n, h.lineno, h.end_lineno or 0) for n in unused if (h := helper_of(n, d)) is not None)
                through = "; ".join(filter(None, (through, _unused_from_now(unused))))
                outcome = unwanted(door.about, outcome, d, operation, text, unused) or outcome
        p = _proposal(path, d.symbol, captured, text, site, outcome, assumed, through)
        return replace(p, helpers=helpers if p.edit is not None else ())

    every = every_site(captured.graph, view, rules)
    if door.asked is not None:
        holding = (s for s in every if isinstance(s.verdict, Holds) and usable(s))
        return [proposed(s) for s in holding if edits[_key(s)] == door.asked]
    found = [(s, proposed(s)) for s in chosen(every, usable) if not _only_follows(view, s.root) and _place(captured, s)]
    return _taking_turns([*(p for _, p in found), *_within_unsafe(found, every, usable, proposed)], text)


@dataclass
class _Again:
    """Whether the same edit, that assumes no more, comes out where the function `d` is read as another one."""

    edit: Edit
    door: _Door
    d: Defined

    def __call__(self, other: Defined) -> bool:
        found = self._findings(other)
        return any(f.status == "safe" for f in found) or any(f.reason in self._before for f in found)

    @cached_property
    def _before(self) -> set[str]:
        """The assumptions of the edit in the function as it stands, where it is read for its sake alone."""
        return {f.reason for f in self._findings(self.d) if f.status == "unsafe"}

    def _findings(self, each: Defined) -> list[Finding]:
        return [p.finding for p in _in_function(each, replace(self.door, asked=self.edit)) if p.edit == self.edit]


def _taking_turns(found: list[Proposal], text: SourceText) -> list[Proposal]:
    """Of edits that were made for the same text, the later ones wait until the earlier ones are made."""
    if sum(p.edit is not None for p in found) < 2:
        return found
    done: list[tuple[Finding, Footprint]] = []
    out = []
    for p in sorted(found, key=lambda p: (p.finding.line, p.finding.column)):
        if p.edit is not None:
            own = footprint(p.edit, text)
            earlier = tuple(finding for finding, other in done if other.conflicts(own))
            done.append((p.finding, own))
            p = replace(p, within=(*p.within, *earlier))
        out.append(p)
    return out


def _only_follows(view: View, root: Value) -> bool:
    """Whether `root` lays out what is the result already: that stays as it is written."""
    return root.op in _LAYOUT and _unpermuted(view, root) is _unpermuted(view, root.inputs[0])


def _unpermuted(view: View, v: Value) -> Value:
    canonical = view.of(v)
    return canonical.inputs[0] if canonical.op == PERMUTE else canonical


def _within_unsafe(
    found: list[tuple[Site, Proposal]], every: Iterable[Site], usable: Callable[[Site], bool],
    proposed: Callable[[Site], Proposal],
) -> list[Proposal]:  # fmt: skip
    """The safe edits inside unsafe ones of greater benefit: a hand-written GELU in an MLP that autofuse would run."""
    unsafe = [(extent(s), p.finding) for s, p in found if p.finding.status == "unsafe"]
    safe = [extent(s) for s, p in found if p.finding.status == "safe"]
    if not unsafe:
        return []
    inner = [
        s for s in every if isinstance(s.verdict, Holds)
        if any(extent(s) & e for e, _ in unsafe) and not any(extent(s) & e for e in safe) and usable(s)
    ]  # fmt: skip
    held = [s for s in inner if proposed(s).finding.status == "safe"]
    within = [(s, tuple(f for e, f in unsafe if extent(s) & e)) for s in chosen(held, lambda s: True)]
    return [replace(proposed(s), within=around) for s, around in within]


def _key(site: Site) -> tuple[int, Value]:
    """A rule is found at a value once."""
    return id(site.rule), site.root


def _edit(placement: Placement, site: Site) -> Edit | Verdict:
    """The edit that makes a site, or what is to be said instead."""
    if (crossing := _crossed(placement.captured, site)) is not None:
        return crossing
    try:
        return placement.edit(site)
    except (Unwritable, NotInTarget) as error:
        return Unknown(error.reason, error.value if isinstance(error, Unwritable) else None)


def _crossed(captured: CapturedFunction, site: Site) -> Fails | None:
    """A match must lie wholly in one loop, `with` or `try` block: outside it the same code may mean something else."""
    root = next(places_of(captured, site.root), None)
    for v in sorted(site.doomed.values, key=lambda v: -v.serial) if root else ():
        places = list(places_of(captured, v))
        if places and root and not any(p.region == root.region for p in places):
            block = next(iter((*places[0].region, *root.region)))
            kind = {ast.With: "with", ast.AsyncWith: "with", ast.Try: "try"}.get(type(block), "loop")
            return Fails(because(matches.PART_IN_BLOCK, block=kind), v)
    return None


def _proposal(
    path: str, symbol: str, captured: CapturedFunction, text: SourceText, site: Site, outcome: Edit | Verdict,
    missing: tuple[str, ...], through: str,
) -> Proposal:  # fmt: skip
    edit = outcome if isinstance(outcome, Edit) else None
    assumed = "; ".join(filter(None, (site.rule.assumes, edit.unsafe if edit else "", *missing)))
    verdict: Verdict = site.verdict if isinstance(outcome, Edit) else outcome
    if assumed and isinstance(verdict, Holds):
        verdict = Holds("unsafe", f"{verdict.why}; {assumed}" if verdict.why else assumed)
    line, end_line, column = _extent(captured, site)
    told = _told(site, verdict, captured, text)
    finding = Finding(
        site.rule.rule.code, site.rule.rule.__name__, path, line, end_line, column, symbol, _status(verdict),
        _message(site, verdict, edit.becomes if edit else "", told, through), told.reason, told.advice, told.value,
        told.line, "; ".join(site.notes), told.code,
    )  # fmt: skip
    return Proposal(finding, edit)


def _told(site: Site, verdict: Verdict, captured: CapturedFunction, text: SourceText) -> Refusal:
    """What to say of a verdict, in the names of the file."""
    if isinstance(verdict, Holds):
        return Refusal(verdict.why)
    return refusal(verdict, site.rule.rule.code, lambda v: written(captured, text, v))


def _unused_from_now(unused: tuple[str, ...]) -> str:
    """What to say of the layers, methods and functions that an edit leaves without a use."""
    names = [f"`{name}`" for name in unused]
    return f"leaves {' and '.join(names)} without a use in this file" if names else ""


def _message(site: Site, verdict: Verdict, becomes: str, told: Refusal, through: str) -> str:
    if isinstance(verdict, Holds):
        clauses = "; ".join(filter(None, (verdict.why, through)))
        return f"{_title(site.rule)}: becomes {becomes}" + (f" ({clauses})" if clauses else "")
    return f"{_title(site.rule)}, not rewritten: {told.reason}"


def _place(captured: CapturedFunction, site: Site) -> ValuePosition | None:
    """Where the text computes a result."""
    return next(iter(root_places(captured, site)), None)


def _extent(captured: CapturedFunction, site: Site) -> tuple[int, int, int]:
    """First line, last line and column of the whole matched pattern."""
    root = _place(captured, site)
    assert root is not None, "sites without a place are not reported"
    places = [root]
    for v in site.doomed.values | (site.steps if not site.doomed.values else frozenset()):
        before = [p for p in places_of(captured, v) if p.statement.lineno <= root.statement.lineno]
        places += before[-1:]
    made = [c.made for v in site.doomed.values for p in captured.places.get(v, []) if (c := _chain(captured, p))]
    ranges = [*(_lines(p) for p in places), *((n.lineno, n.end_lineno or n.lineno, n.col_offset) for n in made)]
    first = min(ranges)
    return first[0], max(end for _, end, _ in ranges), first[2] + 1


def _chain(captured: CapturedFunction, place: ValuePosition) -> Chain | None:
    """The Sequential that a value is a step of."""
    return captured.chains.get(place.node) if place.inner else None


def _lines(place: ValuePosition) -> tuple[int, int, int]:
    """Of the statement where it is a simple one, else of the expression."""
    node: ast.stmt | ast.expr = place.statement if not hasattr(place.statement, "body") else place.node
    return node.lineno, node.end_lineno or node.lineno, node.col_offset
