"""Finds the sites of one file and turns them into proposals: findings with their edits.

1. A search of the bytes rejects files without the words of a rule.
2. Each candidate function is captured as a graph, and the engine matches the rules.
3. Each match gets a status (safe, unsafe, declined, report) and a message.

The modules place/ and write/ make the edits and apply them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from autofuse.canonical import PERMUTE, View
from autofuse.ir.facts import Facts
from autofuse.ir.graph import Value
from autofuse.match.choice import choose_sites, extent
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
from autofuse.source.capture.lambdas import expression_functions, is_expression_function
from autofuse.source.capture.parsed_files import PARSED
from autofuse.source.capture.reliable_imports import imports_torch
from autofuse.source.capture.scope import DefinedFunction, FileScope, file_scope, functions
from autofuse.source.capture.symbolic_lengths import record_lengths
from autofuse.source.capture.toplevel import SYMBOL, top_level_function
from autofuse.source.evidence import Claim, describe_callees, examine_claim
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.call_rules import CallSite, call_sites, may_apply
from autofuse.source.find.caller_assumptions import add_caller_assumptions
from autofuse.source.find.candidate_functions import CandidateFunctions, defines_classes
from autofuse.source.find.expert_loops import CODE as LOOPS
from autofuse.source.find.expert_loops import expert_loops, may_contain_loops
from autofuse.source.find.file_reader import FileReader, SkippedFunction
from autofuse.source.find.proposal import Proposal, decline
from autofuse.source.find.required_words import required_words, words_of_graph
from autofuse.source.find.unused_after_edit import find_unused
from autofuse.source.find.unwanted_edits import (
    IN_TESTS,
    EditedFile,
    assumption_about_text,
    generator_of,
    helper_of,
    refuse_unwanted,
)
from autofuse.source.place.author_text import author_text
from autofuse.source.place.conflicts import Footprint, footprint
from autofuse.source.place.edits import Edit, span_of
from autofuse.source.place.function import EditedFunction
from autofuse.source.place.placement import Placement
from autofuse.source.targets import DEFAULT, NotInTarget
from autofuse.source.targets.printing import SourceText
from autofuse.source.targets.speller import Unwritable, computing_places, find_call_places

_LAYOUT = frozenset("transpose mT permute rearrange view contiguous expand unsqueeze".split())


def proposals(
    source: bytes,
    path: str,
    *,
    rules: Sequence[LoadedRule],
    target: str = DEFAULT,
    skipped: list[SkippedFunction] | None = None,
    only: Collection[str] | None = None,
    files: ProjectFiles | None = None,
    generated: bool = False,
    declined: bool = True,
    always_parse: bool = False,
) -> list[Proposal]:
    """Finds what autofuse would do to one file.

    Args:
        source: the bytes of the file.
        path: its path, for findings and for the lookup of parsed files; "" if it has none.
        rules: the rules to apply.
        target: the library for which calls are written.
        skipped: collects the functions that cannot be read; they stay as they are. With None, exceptions of autofuse
            itself are raised.
        only: the symbols to read; None reads all functions.
        files: the files of the project that are given. They may show that other code runs than the code in this file.
        generated: whether to edit generated files too.
        declined: whether declined proposals are wanted. Without them, a generated file is not read.
        always_parse: whether a file is parsed in any case, so that a syntax error is found.

    Returns:
        The proposals, in the order of the lines.

    Raises:
        SyntaxError: the file does not parse.
    """
    if b"torch" not in source:
        return []
    if files is not None:
        files.make_room()
    else:
        PARSED.forget_existence()
    edited_file = EditedFile(path, "" if generated else generator_of(source))
    call_rules = [r for r in rules if may_apply(r, source)]
    dataflow_rules = tuple(r for r in rules if r.change is None)
    hints = required_words(dataflow_rules).possible_in(source, others=defines_classes(source))
    loops = any(r.rule.code == LOOPS for r in dataflow_rules) and may_contain_loops(source)
    has_none = edited_file.generated and not declined or not call_rules and not hints.rules and not loops
    if has_none and not always_parse:
        return []
    tree = PARSED.tree(source, path) if path else ast.parse(source)  # also raises SyntaxError
    if has_none or not imports_torch(tree):
        return []
    reader = FileReader(skipped)
    scope = replace(PARSED.scope(source, path), imported_classes={}) if path else file_scope(tree)
    text = SourceText(source)
    results: list[Proposal] = []
    all_functions = functions(scope)
    candidates = CandidateFunctions(scope, text, all_functions, hints)
    lambdas = [
        f for defined in all_functions if candidates.may_match(defined.function) for f in expression_functions(defined)
    ]
    for defined in filter(None, (*all_functions, *lambdas, top_level_function(scope))):
        if only is not None and defined.symbol not in only or not candidates.is_candidate(defined.function):
            continue
        read_one = partial(
            _function_proposals,
            defined,
            _FileContext(text, path, dataflow_rules, target, files, edited_file=edited_file),
        )
        results += reader.read(read_one, defined.function.lineno, defined.symbol, text.size_of(defined.function))
    results = _prefer_helpers(results)
    if loops:
        found = expert_loops(all_functions, dataflow_rules, path)
        results += [p for defined, p in found if only is None or defined.symbol in only]
    if call_rules:
        read_one = partial(_call_proposals, scope, call_rules, path, only, edited_file.is_test, files)
        results += reader.read(read_one, 1, "the arguments of its calls", len(source))
    reader.close()
    results = [_decline_generated(p, edited_file) for p in results]
    return sorted(_without_duplicates(results), key=lambda p: (p.finding.line, p.finding.column, p.finding.code))


def _without_duplicates(all_proposals: list[Proposal]) -> list[Proposal]:
    """Removes refusals with equal findings: a rule may fail in two ways at one place."""
    refusals = {p.finding: p for p in reversed(all_proposals) if p.edit is None}
    return [p for p in all_proposals if p.edit is not None or refusals[p.finding] is p]


def _prefer_helpers(all_proposals: list[Proposal]) -> list[Proposal]:
    """Declines the edit of a caller if the helper that it would leave uncalled is edited itself."""
    safe = [p.finding for p in all_proposals if p.edit is not None and p.finding.status == "safe"]
    return [_decline_for_helper(p, safe) if p.helpers else p for p in all_proposals]


def _decline_for_helper(p: Proposal, safe: list[Finding]) -> Proposal:
    for name, first, last in p.helpers:
        if any(f.code == p.finding.code and first <= f.line <= last for f in safe):
            return decline(p, because(writing.HELPER_UNCALLED, name=name))
    return p


def _call_proposals(
    scope: FileScope, rules: Sequence[LoadedRule], path: str, only: Collection[str] | None, is_test: bool,
    files: ProjectFiles | None,
) -> list[Proposal]:  # fmt: skip
    sites = call_sites(scope, rules, files)
    return [_call_proposal(s, path, is_test) for s in sites if only is None or s.symbol in only]


def _call_proposal(site: CallSite, path: str, is_test: bool) -> Proposal:
    """The proposal for a call. It has an edit if arguments are added or removed."""
    call, rule = site.call, site.rule.rule
    if is_test and isinstance(site.verdict, Holds) and (site.added or site.omitted):
        site = replace(site, verdict=Holds("unsafe", "; ".join(filter(None, (site.verdict.why, IN_TESTS)))))
    refused = _refusal_of_call(site.verdict)
    finding = Finding(
        rule.code, rule.__name__, path, call.lineno, call.end_lineno or call.lineno, call.col_offset + 1, site.symbol,
        _status(site.verdict), _message_of_call(site), refused.reason, refused.advice,
        reason_code=refused.code,
    )  # fmt: skip
    additions = tuple((span_of(call), name, value) for name, value in site.added)
    omissions = tuple((span_of(call), span_of(value)) for value in site.omitted)
    return Proposal(finding, Edit((), additions=additions, omissions=omissions) if additions or omissions else None)


def _decline_generated(p: Proposal, file: EditedFile) -> Proposal:
    """Declines a proposal in a generated file. Nobody should change such a file, so it has no reports either."""
    if not file.generated or p.finding.status == "declined":
        return p
    return decline(p, because(writing.GENERATED_FILE, name=file.generated))


def _refusal_of_call(verdict: Verdict) -> Refusal:
    """The reason and the advice for a call. The advice does not mention fusion, because nothing is fused."""
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
    additions = ", ".join(f"{name}={text}" for name, text in site.added)
    removals = ", ".join(f"{name}={text}" for name, text in site.rule.change.removed) if site.rule.change else ""
    change = f"can be given {additions}" if additions else f"can do without {removals}"
    return f"{title}: {change}" + (f" ({why})" if why else "")


def _status(verdict: Verdict) -> str:
    return verdict.safety if isinstance(verdict, Holds) else "declined" if isinstance(verdict, Fails) else "report"


def _title(rule: LoadedRule) -> str:
    return (rule.rule.__doc__ or rule.rule.__name__).splitlines()[0].rstrip(".")


@dataclass(frozen=True)
class _FileContext:
    """Everything that the functions of one file have in common.

    With `wanted_edit`, a function is read again only to see if this edit is proposed; other edits are ignored.
    """

    text: SourceText
    path: str
    rules: tuple[LoadedRule, ...]
    target: str
    files: ProjectFiles | None = None
    wanted_edit: Edit | None = None
    edited_file: EditedFile = field(default_factory=lambda: EditedFile(""))


def _function_proposals(defined: DefinedFunction, context: _FileContext) -> list[Proposal]:
    without_callers = _proposals_without_callers(defined, context)
    if without_callers is None:
        return []
    if context.wanted_edit is not None or is_expression_function(defined.function):
        return without_callers
    return add_caller_assumptions(
        without_callers, defined, context.files, lambda other: _proposals_without_callers(other, context) or []
    )


def _proposals_without_callers(defined: DefinedFunction, context: _FileContext) -> list[Proposal] | None:
    """The proposals for a function alone; None if its operations fit no rule, whatever its callers pass."""
    text, path, rules, target = context.text, context.path, context.rules, context.target
    captured = capture(defined.function, defined.scope, defined.owner, defined.instance_name, defined.module_parameters)
    if not required_words(rules).search(words_of_graph(captured.graph)):
        return None
    sizes = record_lengths(captured)
    view = View(Facts(captured.known))
    # Code at module level may rebind an imported name, so a qualified name proves nothing there.
    scope = replace(defined.scope, qualified_names={}) if defined.symbol == SYMBOL else defined.scope
    find_importers = (
        partial(context.files.files_reading_layouts, defined.scope)
        if context.files is not None
        else tuple[FileScope, ...]
    )
    edited = EditedFunction(text, captured, view, sizes, scope, target, defined.owner, find_importers)
    placement = Placement(edited)
    edits: dict[_SiteKey, Edit | Verdict] = {}

    def can_edit(site: Site) -> bool:
        if _is_only_layout(view, site.root) or _position(captured, site) is None:
            return False
        edits[_site_key(site)] = _edit(placement, site)
        return isinstance(edits[_site_key(site)], Edit)

    cache = dict[_SiteKey, Proposal]()

    def proposal_for(site: Site) -> Proposal:
        key = _site_key(site)
        if key not in cache:
            cache[key] = make_proposal(site)
        return cache[key]

    def make_proposal(site: Site) -> Proposal:
        outcome = edits.get(_site_key(site), site.verdict)
        assumptions, notes, helpers = tuple[str, ...](), "", tuple[tuple[str, int, int], ...]()
        if isinstance(outcome, Edit) and context.edited_file.generated:
            outcome = Fails(because(writing.GENERATED_FILE, name=context.edited_file.generated), enables=False)
        elif isinstance(outcome, Edit) and isinstance(site.verdict, Holds):
            recheck = None if context.wanted_edit else _Recheck(outcome, replace(context, rules=(site.rule,)), defined)
            lines = text.lines_of(defined.function)
            claim = Claim(site, outcome, captured, view, defined, target, context.files, recheck, lines)
            evidence, notes = examine_claim(claim), describe_callees(claim)
            outcome, assumptions = (evidence, ()) if isinstance(evidence, Fails) else (outcome, evidence)
            if isinstance(outcome, Edit):
                operation = site.rule.replacement.operation
                about_text = assumption_about_text(outcome, defined.function, text)
                assumptions = tuple(
                    filter(None, (*assumptions, IN_TESTS if context.edited_file.is_test else "", about_text))
                )
                unused = find_unused(outcome, defined)
                helpers = tuple(
                    (n, h.lineno, h.end_lineno or 0) for n in unused if (h := helper_of(n, defined)) is not None
                )
                notes = "; ".join(filter(None, (notes, _unused_clause(unused))))
                outcome = refuse_unwanted(outcome, defined, operation, text, unused) or outcome
        p = _proposal(path, defined.symbol, captured, text, site, outcome, assumptions, notes)
        return replace(p, helpers=helpers if p.edit is not None else ())

    sites = every_site(captured.graph, view, rules)
    if context.wanted_edit is not None:
        usable_sites = (s for s in sites if isinstance(s.verdict, Holds) and can_edit(s))
        return [proposal_for(s) for s in usable_sites if edits[_site_key(s)] == context.wanted_edit]
    best = choose_sites(sites, can_edit)
    reported = [(s, proposal_for(s)) for s in best if not _is_only_layout(view, s.root) and _position(captured, s)]
    reported = _one_after_the_other(reported)
    return _wait_for_earlier(
        [*(p for _, p in reported), *_safe_parts_of_unsafe(reported, sites, can_edit, proposal_for)], text
    )


@dataclass
class _Recheck:
    """Tests whether a changed version of a function still gets the same edit, with no further assumptions.

    `defined` is the original function.
    """

    edit: Edit
    context: _FileContext
    defined: DefinedFunction

    def __call__(self, other: DefinedFunction) -> bool:
        findings = self._findings(other)
        return any(f.status == "safe" for f in findings) or any(f.reason in self._known_assumptions for f in findings)

    @cached_property
    def _known_assumptions(self) -> set[str]:
        """The assumptions of this edit in the original function, if nothing but this edit is searched."""
        return {f.reason for f in self._findings(self.defined) if f.status == "unsafe"}

    def _findings(self, defined: DefinedFunction) -> list[Finding]:
        context = replace(self.context, wanted_edit=self.edit)
        return [p.finding for p in _function_proposals(defined, context) if p.edit == self.edit]


def _one_after_the_other(reported: list[tuple[Site, Proposal]]) -> list[tuple[Site, Proposal]]:
    """Makes each site wait for the earlier ones with which it shares steps: the last one removes these."""
    ordered = []
    for i, (site, p) in enumerate(reported):
        earlier = [o.finding for s, o in reported[:i] if o.edit is not None and s.removed.shared & site.removed.shared]
        ordered.append((site, replace(p, waits_for=(*p.waits_for, *earlier)) if p.edit is not None else p))
    return ordered


def _wait_for_earlier(all_proposals: list[Proposal], text: SourceText) -> list[Proposal]:
    """Makes an edit wait for earlier edits that change the same text."""
    if sum(p.edit is not None for p in all_proposals) < 2:
        return all_proposals
    earlier_edits: list[tuple[Finding, Footprint]] = []
    ordered = []
    for p in sorted(all_proposals, key=lambda p: (p.finding.line, p.finding.column)):
        if p.edit is not None:
            changed = footprint(p.edit, text)
            conflicting = tuple(finding for finding, other in earlier_edits if other.conflicts(changed))
            earlier_edits.append((p.finding, changed))
            p = replace(p, waits_for=(*p.waits_for, *conflicting))
        ordered.append(p)
    return ordered


def _is_only_layout(view: View, root: Value) -> bool:
    """Whether `root` only changes the layout of a result. Such code stays as it is."""
    return root.op in _LAYOUT and _without_permute(view, root) is _without_permute(view, root.inputs[0])


def _without_permute(view: View, v: Value) -> Value:
    canonical = view.of(v)
    return canonical.inputs[0] if canonical.op == PERMUTE else canonical


def _safe_parts_of_unsafe(
    reported: list[tuple[Site, Proposal]], sites: Iterable[Site], can_edit: Callable[[Site], bool],
    proposal_for: Callable[[Site], Proposal],
) -> list[Proposal]:  # fmt: skip
    """The safe edits inside unsafe edits of greater benefit, such as a hand-written GELU inside an MLP.

    Each waits for the unsafe edits around it.
    """
    unsafe = [(extent(s), p.finding) for s, p in reported if p.finding.status == "unsafe"]
    safe = [extent(s) for s, p in reported if p.finding.status == "safe"]
    if not unsafe:
        return []
    parts = [
        s for s in sites if isinstance(s.verdict, Holds)
        if any(extent(s) & values for values, _ in unsafe) and not any(extent(s) & values for values in safe)
        if can_edit(s)
    ]  # fmt: skip
    safe_parts = [s for s in parts if proposal_for(s).finding.status == "safe"]
    within = [
        (s, tuple(finding for values, finding in unsafe if extent(s) & values))
        for s in choose_sites(safe_parts, lambda s: True)
    ]
    return [replace(proposal_for(s), waits_for=covering) for s, covering in within]


_SiteKey = tuple[int, Value, frozenset[Value]]


def _site_key(site: Site) -> _SiteKey:
    """The key of a site. A rule matches a value at most once by itself, and once together with others."""
    return id(site.rule), site.root, site.partners


def _edit(placement: Placement, site: Site) -> Edit | Verdict:
    """The edit of a site, or the verdict that replaces it."""
    if (crossing := _refuse_crossing(placement.captured, site)) is not None:
        return crossing
    try:
        return placement.edit(site)
    except (Unwritable, NotInTarget) as error:
        return Unknown(error.reason, error.value if isinstance(error, Unwritable) else None)


def _refuse_crossing(captured: CapturedFunction, site: Site) -> Fails | None:
    """Refuses a match that crosses a loop, `with` or `try` block: outside, the same code may mean something else."""
    root = next(computing_places(captured, site.root), None)
    for v in sorted(site.removed.values, key=lambda v: -v.serial) if root else ():
        places = list(computing_places(captured, v))
        if places and root and not any(p.region == root.region for p in places):
            block = next(iter((*places[0].region, *root.region)))
            name = {ast.With: "with", ast.AsyncWith: "with", ast.Try: "try"}.get(type(block), "loop")
            return Fails(because(matches.PART_IN_BLOCK, block=name), v)
    return None


def _proposal(
    path: str, symbol: str, captured: CapturedFunction, text: SourceText, site: Site, outcome: Edit | Verdict,
    from_evidence: tuple[str, ...], notes: str,
) -> Proposal:  # fmt: skip
    edit = outcome if isinstance(outcome, Edit) else None
    assumptions = "; ".join(filter(None, (site.rule.assumes, edit.unsafe if edit else "", *from_evidence)))
    verdict: Verdict = site.verdict if isinstance(outcome, Edit) else outcome
    if assumptions and isinstance(verdict, Holds):
        verdict = Holds("unsafe", f"{verdict.why}; {assumptions}" if verdict.why else assumptions)
    line, end_line, column = _extent(captured, site)
    refused = _refusal_of(site, verdict, captured, text)
    finding = Finding(
        site.rule.rule.code, site.rule.rule.__name__, path, line, end_line, column, symbol, _status(verdict),
        _message(site, verdict, edit.becomes if edit else "", refused, notes), refused.reason, refused.advice,
        refused.value, refused.line, "; ".join(site.notes), refused.code,
    )  # fmt: skip
    return Proposal(finding, edit)


def _refusal_of(site: Site, verdict: Verdict, captured: CapturedFunction, text: SourceText) -> Refusal:
    """The reason and the advice of a verdict, in the names of the file."""
    if isinstance(verdict, Holds):
        return Refusal(verdict.why)
    return refusal(verdict, site.rule.rule.code, lambda v: author_text(captured, text, v))


def _unused_clause(unused: tuple[str, ...]) -> str:
    """The clause of a message that names what an edit leaves without a use."""
    names = [f"`{name}`" for name in unused]
    return f"leaves {' and '.join(names)} without a use in this file" if names else ""


def _message(site: Site, verdict: Verdict, becomes: str, refused: Refusal, notes: str) -> str:
    if isinstance(verdict, Holds):
        clauses = "; ".join(filter(None, (verdict.why, notes)))
        return f"{_title(site.rule)}: becomes {becomes}" + (f" ({clauses})" if clauses else "")
    return f"{_title(site.rule)}, not rewritten: {refused.reason}"


def _position(captured: CapturedFunction, site: Site) -> ValuePosition | None:
    """The position of the expression that computes the result of a site."""
    return next(iter(find_call_places(captured, site)), None)


def _extent(captured: CapturedFunction, site: Site) -> tuple[int, int, int]:
    """The first line, the last line and the column (from 1) of the matched code."""
    root = _position(captured, site)
    assert root is not None, "sites without a position are not reported"
    places = [root]
    for v in site.removed.values | (site.steps if not site.removed.values else frozenset()):
        earlier = [p for p in computing_places(captured, v) if p.statement.lineno <= root.statement.lineno]
        places += earlier[-1:]
    sequentials = [
        c.constructor
        for v in site.removed.values
        for p in captured.positions.get(v, [])
        if (c := _sequential_of(captured, p))
    ]
    ranges = [
        *(_line_range(p) for p in places),
        *((n.lineno, n.end_lineno or n.lineno, n.col_offset) for n in sequentials),
    ]
    first = min(ranges)
    return first[0], max(end for _, end, _ in ranges), first[2] + 1


def _sequential_of(captured: CapturedFunction, place: ValuePosition) -> Chain | None:
    """The `nn.Sequential` that computes a value as one of its steps."""
    return captured.chains.get(place.node) if place.inner else None


def _line_range(place: ValuePosition) -> tuple[int, int, int]:
    """The first line, the last line and the column of a simple statement, or else of the expression."""
    node: ast.stmt | ast.expr = place.statement if not hasattr(place.statement, "body") else place.node
    return node.lineno, node.end_lineno or node.lineno, node.col_offset
