"""Legality: whether the intermediate values of a match can be removed without a visible effect.

This file knows the graph of the program and its effects. It knows no rule and no front end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from autofuse.ir.graph import ATTRIBUTE, CALL, IS_NONE, ITEM, MODULE, SINK, Graph, Value
from autofuse.ir.harmless import HARMLESS
from autofuse.ir.steps import spend
from autofuse.ir.vocabulary import METADATA, OPS
from autofuse.reasons import matches
from autofuse.reasons.reason import Code, Reason, because
from autofuse.rule import Fails

_SHARED = frozenset("data T H real imag".split())
_VIEWS = frozenset(
    """
    detach flatten squeeze unflatten t select narrow movedim moveaxis diagonal unfold view_as reshape_as broadcast_to
    view_as_real view_as_complex
""".split()
)
RESULT_UNUSED = because(matches.VALUE_LOOKED_AT)
_WATCHES = frozenset({"register_hook", "retain_grad", "register_post_accumulate_grad_hook"})
_SEPARATE = frozenset({"chunk", "split", "unbind", CALL})  # the parts of their results share no memory with each other


@dataclass(frozen=True)
class RemovedValues:
    """The values that a replacement removes.

    Attributes:
        values: the values that only the match needs.
        metadata: reads of their shape or dtype that the program still needs.
        shared: the values that only this match and other matches need. The last of these matches removes them.
    """

    values: frozenset[Value]
    metadata: tuple[Value, ...] = field(default=())
    shared: frozenset[Value] = field(default=frozenset())


@dataclass(frozen=True)
class Replaced:
    """The results of other matches, if these are replaced, too.

    Attributes:
        results: the values that their fused operations replace.
        operands: the values that these read.
    """

    results: frozenset[Value] = frozenset()
    operands: frozenset[Value] = frozenset()


_NOTHING_ELSE = Replaced()


def removed_values(
    graph: Graph, results: tuple[Value, ...], steps: frozenset[Value], operands: frozenset[Value],
    others: Replaced = _NOTHING_ELSE,
) -> RemovedValues | Fails:  # fmt: skip
    """Find the values that the replacement of `results` removes: those between the operands and the results.

    Args:
        graph: the graph of the program.
        results: the values that the fused operation replaces.
        steps: the values that the pattern matched.
        operands: the values that the fused operation reads.
        others: the other matches that are replaced, too.

    Returns:
        The removed values, or the reason why one of them must stay.
    """
    between = _computed_within(results, operands, steps, steps | operands)
    steps |= {v for v in between if v.op in OPS and OPS[v.op].heavy}  # steps that the pattern matched in another layout
    held = _computed_within(results, operands, steps, steps)
    for v in operands:
        if (inside := _computed_from(v, held)) is not None:
            return Fails(_reason_for(matches.OPERAND_FROM_REMOVED, inside), inside)
    for v in others.operands:
        if (inside := _computed_from(v, held - set(results))) is not None:
            return Fails(_reason_for(matches.OPERAND_FROM_REMOVED, inside), inside)
    live = _NeededValues(graph, (*results, *others.results), held)
    metadata = tuple(
        dict.fromkeys(u for v in held if v not in results for u in graph.users[v] if is_metadata(u) and u in live)
    )
    for v in sorted(held - set(results), key=lambda v: -v.serial):
        if v in live and not _is_view_of_operand(v, operands):  # report the last one: the value that is used outside
            return Fails(_needed_by(live[v], v), v, use=live[v])
    for v in sorted(between - set(results), key=lambda v: -v.serial):
        if (hook := _gradient_hook_on(graph, v)) is not None:
            return Fails(_reason_for(matches.VALUE_HOOKED, v), v, use=hook)
    removed = frozenset(
        v for v in held | between if v not in live and (v in held or not _is_view_of_operand(v, operands))
    )
    lost = _lost_write(graph, removed | set(results), live)
    if lost is not None:
        return lost
    alone = _NeededValues(graph, results, held) if others.results else live
    shared = frozenset(v for v in removed if v in alone) - set(results)
    removed -= shared | set(results)
    return RemovedValues(removed | _unused_parts(graph, removed, alone), metadata, shared)


def _unused_parts(graph: Graph, removed: frozenset[Value], live: _NeededValues) -> frozenset[Value]:
    """The parts of removed values that nothing needs: y in `x, y = logits[:n], logits[n:]`, if nothing reads y."""
    parts = {u for v in removed for u in graph.users[v] if u.op == ITEM and u not in live}
    return frozenset(parts - removed)


def _gradient_hook_on(graph: Graph, v: Value) -> Value | None:
    """The call that registers a hook on the gradient of `v`; None if there is none."""
    reads = [u for u in graph.users[v] if u.op == ATTRIBUTE and u.data in _WATCHES]
    calls = [c for u in (v, *reads) for c in graph.users[u] if c.op == CALL]
    named = (c for c in calls if isinstance(c.data, tuple) and str(c.data[0]).rpartition(".")[2] in _WATCHES)
    return next(named, None)


def _is_view_of_operand(v: Value, operands: frozenset[Value]) -> bool:
    """Whether `v` is an operand with another shape or dtype. It may stay, because it is not an intermediate result."""
    while v not in operands:
        if v.op not in OPS or OPS[v.op].effect != "view":
            return False
        v = v.inputs[0]
    return True


def written_between(graph: Graph, operands: frozenset[Value], first: int, results: tuple[Value, ...]) -> Fails | None:
    """Check that no operand is overwritten before the fused operation reads it.

    The fused operation reads all operands where the last result is computed. The program may have read them earlier.

    Args:
        graph: the graph of the program.
        operands: the values that the fused operation reads.
        first: the serial of the first value that the match removes.
        results: the values that the fused operation replaces; the last result is the last element.

    Returns:
        The reason to decline the site; None if nothing is overwritten.
    """
    bases = {base for v in operands for base in memory_of(v)}
    wholes = {base for v in operands for base in memory_of(v, through_parts=True)}
    start = bisect_right(graph.writes, first, key=lambda w: w.at)
    for write in graph.writes[start : bisect_right(graph.writes, results[-1].serial, key=lambda w: w.at)]:
        spend()
        own = write.result in operands or write.result in results  # h += x, if the match replaces this sum
        if not own and _may_change(bases, wholes, write.target):
            return Fails(because(matches.OPERAND_WRITTEN), write.target, use=write.result)
    for call in graph.values[first : results[-1].serial]:
        # An unknown call whose result is not used was made for its effects, such as m.zero_() as a statement.
        for_effects = call.op == CALL and has_unused_result(graph, call) and not _is_harmless(call)
        receivers = [i.inputs[0] for i in call.inputs if i.op == ATTRIBUTE and not is_metadata(i)]  # m in m.zero_()
        passed = {base for v in (*call.inputs, *receivers) for base in memory_of(v)} if for_effects else set[Value]()
        if passed & bases:
            operand = min((v for v in operands if passed.intersection(memory_of(v))), key=lambda v: v.serial)
            return Fails(because(matches.OPERAND_PASSED_ON), operand, use=call)
    return None


def has_unused_result(graph: Graph, call: Value) -> bool:
    """Whether the program does not use the result of a call, such as `m.zero_()` as a statement."""
    return all(u.op == SINK and u.data == RESULT_UNUSED for u in graph.users.get(call, ()))


def _is_harmless(call: Value) -> bool:
    return isinstance(call.data, tuple) and call.data[0] in HARMLESS


def written_after(graph: Graph, results: tuple[Value, ...]) -> Fails | None:
    """Check that no result is written in place later. Use it if the fused operation saves its result for the gradient.

    Returns:
        The reason to decline the site; None if no result is written.
    """
    first = min(r.serial for r in results)  # an earlier write cannot be to a view of a later result
    for write in graph.writes[bisect_right(graph.writes, first, key=lambda w: w.at) :]:
        chain = memory_of(write.target)
        spend(len(chain))
        if any(r in chain for r in results) and write.result not in results:
            return Fails(because(matches.RESULT_WRITTEN), write.target, use=write.result)
    return None


def may_share_memory(v: Value, other: Value) -> bool:
    """Whether two values may share memory, judged by the operations that created them."""
    wholes = set(memory_of(v, through_parts=True))
    return bool(wholes.intersection(memory_of(other, through_parts=True)))


def _may_change(bases: set[Value], wholes: set[Value], written: Value) -> bool:
    """Whether a write to `written` may change an operand.

    Parts of one tensor, such as two results of `chunk`, do not share memory with each other. Each shares memory with
    the tensor.

    Args:
        bases: the operands and the values that they are views of, not followed beyond a part of a tensor.
        wholes: the same, followed from a part to its tensor.
        written: the value whose memory is written.
    """
    whole = memory_of(written, through_parts=True)
    return bool(wholes.intersection(memory_of(written)) or bases.intersection(whole))


def _computed_within(
    results: tuple[Value, ...], operands: frozenset[Value], steps: frozenset[Value], sources: frozenset[Value]
) -> frozenset[Value]:
    """The results and their ancestors that are computed from the contents of `sources`.

    The search stops at operands, unless an operand is one of `steps`. It visits values from the last to the first and
    ends when no more values can be inside. So its cost depends on the size of the match, not of the function.
    """
    inside, outside = set(results), set(operands)
    by_serial = {v.serial: v for v in (*results, *operands)}
    todo = [-serial for serial in by_serial]
    heapify(todo)
    waiting = len(inside)  # the number of values in `todo` that may be inside
    found: list[Value] = []
    ends = operands - steps
    while waiting:
        v = by_serial.pop(-heappop(todo))
        spend()
        waiting -= v in inside
        here = v in inside and (v not in outside or v in steps)
        there = v in outside and not is_metadata(v)
        if here:
            found.append(v)
        for i in v.inputs:
            if here and i not in inside and i not in ends and (i.inputs or i in steps):
                inside.add(i)
                waiting += 1
            if there:
                outside.add(i)
            if (i in inside or i in outside) and i.serial not in by_serial:
                by_serial[i.serial] = i
                heappush(todo, -i.serial)
    depends: dict[Value, bool] = {}
    for v in reversed(found):
        own = not is_metadata(v) and any(depends.get(i, i in sources) for i in v.inputs)
        depends[v] = own or v in sources
    return frozenset(v for v, d in depends.items() if d) | set(results)


def _computed_from(v: Value, removed: frozenset[Value]) -> Value | None:
    """A value in `removed` whose contents `v` depends on; None if there is none."""
    first = min((r.serial for r in removed), default=0)
    seen, todo = set[Value](), [v]
    while todo:
        v = todo.pop()
        if v in removed:
            return v
        if v not in seen and not is_metadata(v):
            seen.add(v)
            spend()
            todo.extend(i for i in v.inputs if i.serial >= first)  # earlier values are computed from none of them
    return None


class _NeededValues:
    """The values that the program still needs after the replacement of `results`, and the sink or call that needs them.

    A read of the shape or dtype of a value in `held` does not need that value, because the writer can read the shape or
    dtype of another value.
    """

    def __init__(self, graph: Graph, results: tuple[Value, ...], held: frozenset[Value]) -> None:
        self.graph, self.results, self.held = graph, results, held
        self._uses: dict[Value, Value | None] = {}
        self._last = max(v.serial for v in (*results, *held))

    def __contains__(self, v: Value) -> bool:
        return self._first_use(v) is not None

    def __getitem__(self, v: Value) -> Value:
        use = self._first_use(v)
        assert use is not None, f"nothing needs {v!r}"
        return use

    def _first_use(self, v: Value) -> Value | None:
        """The first sink or call in program order that `v` reaches; None if it reaches none."""
        if v not in self._uses:
            seen, todo = {v.serial: v}, [v.serial]
            while todo and v not in self._uses:
                reached = seen[heappop(todo)]
                spend()
                later = self.graph.escapes()[reached] if reached.serial > self._last else None
                if later is not None and later is not reached:  # beyond the last result, no user is excluded
                    if later.serial not in seen:
                        seen[later.serial] = later
                        heappush(todo, later.serial)
                    continue
                if reached.op in (SINK, CALL):
                    self._uses[v] = reached
                for user in self._users(reached):
                    if user.serial not in seen:
                        seen[user.serial] = user
                        heappush(todo, user.serial)
            self._uses.setdefault(v, None)
        return self._uses[v]

    def _users(self, v: Value) -> Iterator[Value]:
        """The users of `v`, without the results and without reads of the shape of a value in `held`."""
        for user in self.graph.users.get(v, ()):
            read = is_metadata(user) and v in self.held and v not in self.results
            if user not in self.results and not read:
                yield user


def _lost_write(graph: Graph, removed: frozenset[Value], live: _NeededValues) -> Fails | None:
    """The reason to decline if a removed step writes in place to memory that the program still reads."""
    since = min((v.serial for v in removed), default=0)
    for write in graph.writes[bisect_right(graph.writes, since, key=lambda w: w.at) :]:
        if write.result not in removed or write.target in removed:
            continue
        target = write.target
        local = target.op in OPS and OPS[target.op].effect in ("pure", "random") and target not in live
        if not local:
            return Fails(because(matches.STEP_WRITES), target, use=write.result)
    return None


def _needed_by(use: Value, v: Value) -> Reason:
    """The reason why `v` must stay: `use`, a sink or a call, needs it."""
    if isinstance(use.data, Reason):
        return use.data.with_data(**_words_for(v))
    assert isinstance(use.data, tuple), "a use is a sink with a Reason, or a call with its name and keywords"
    return because(matches.VALUE_USED_BY, call=use.data[0], **_words_for(v))


def _reason_for(code: Code, v: Value) -> Reason:
    return because(code, **_words_for(v))


def is_metadata(v: Value) -> bool:
    """Whether `v` reads the shape, dtype or device of a tensor, or compares it with None, and not its contents."""
    if v.op == IS_NONE:
        return True
    return v.op == ATTRIBUTE and v.data in METADATA or v.op in OPS and OPS[v.op].effect == "metadata"


def memory_of(v: Value, through_parts: bool = False) -> list[Value]:
    """List the values whose memory `v` may share: `v`, the value that it is a view of, and so on.

    Args:
        v: the value.
        through_parts: also follow a part to its tensor: from `a` to `x` in `a, b = x.chunk(2)`.
    """
    chain, source = [v], _viewed_value(v, through_parts)
    while source is not None:
        chain.append(source)
        source = _viewed_value(source, through_parts)
    return chain


def _viewed_value(v: Value, through_parts: bool) -> Value | None:
    """The value that `v` may be a view of; None if there is none."""
    if not v.inputs:
        return None
    if v.op == ITEM:
        return v.inputs[0] if v.inputs[0].op not in _SEPARATE or through_parts else None
    if v.op == CALL and isinstance(v.data, tuple):
        return _viewed_by_call(v, str(v.data[0]).rpartition(".")[2])
    shares = v.op == "identity" or v.op in OPS and OPS[v.op].effect == "view" or v.op == ATTRIBUTE and v.data in _SHARED
    return v.inputs[0] if shares else None


def _viewed_by_call(call: Value, name: str) -> Value | None:
    """The tensor that a call returns a view of, for calls that the vocabulary lacks: q in q.narrow(0, 0, 1)."""
    if name not in _VIEWS and not written_in_place(name):
        return None
    function = call.inputs[0]
    if function.op != ATTRIBUTE or function.data != name:
        return function  # in a traced graph, a call has only its arguments as inputs
    receiver = function.inputs[0]
    return receiver if receiver.op != MODULE else call.inputs[1] if len(call.inputs) > 1 else None


def written_in_place(name: str) -> bool:
    """Whether a method's name says that it returns its receiver: x.requires_grad_()."""
    return name.endswith("_") and not name.endswith("__")


_DESCRIPTIONS = {
    "softmax": "the matrix of probabilities",
    "dropout": "the matrix of probabilities after dropout",
    "matmul": "a matrix product",
    "einsum": "a matrix product",
    "add": "a sum",
    "mul": "a product",
    "linear": "the output of a linear layer",
}


def _words_for(v: Value) -> dict[str, str]:
    """The words for `v` in a report, with an article: `what` for the first mention, `which` before its name."""
    known = _DESCRIPTIONS.get(v.op, "")
    return {"what": known or f"an intermediate value ({v.op})", "which": known or "the intermediate value"}
