"""Whether a match may be acted on: nothing may notice that its intermediate values are gone.

Knows the program's graph and effects. Knows no rule and no front end.
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
LOOKED_AT = because(matches.VALUE_LOOKED_AT)
_WATCHES = frozenset({"register_hook", "retain_grad", "register_post_accumulate_grad_hook"})
_SEPARATE = frozenset({"chunk", "split", "unbind", CALL})  # their parts share no memory with each other


@dataclass(frozen=True)
class RemovedValues:
    """What disappears with a match: `values` that only it needs; `metadata` are live reads of their shape or dtype."""

    values: frozenset[Value]
    metadata: tuple[Value, ...] = field(default=())


def removed_values(
    graph: Graph, results: tuple[Value, ...], steps: frozenset[Value], operands: frozenset[Value]
) -> RemovedValues | Fails:
    """The values that replacing `results` removes, or why one of them must stay.

    `steps` are the program's values that the pattern named, `operands` those that the fused operation reads. What lies
    between the operands and the results goes.
    """
    between = _computed_within(results, operands, steps, steps | operands)
    steps |= {v for v in between if v.op in OPS and OPS[v.op].heavy}  # those named in another layout
    held = _computed_within(results, operands, steps, steps)
    for v in operands:
        if (inside := _computed_from(v, held)) is not None:
            return Fails(_about(matches.OPERAND_FROM_REMOVED, inside), inside)
    live = _Needed(graph, results, held)
    metadata = tuple(
        dict.fromkeys(u for v in held if v not in results for u in graph.users[v] if is_metadata(u) and u in live)
    )
    for v in sorted(held - set(results), key=lambda v: -v.serial):
        if v in live and not _views(v, operands):  # the latest: what is seen outside, not what it was made from
            return Fails(_needed_by(live[v], v), v, use=live[v])
    for v in sorted(between - set(results), key=lambda v: -v.serial):
        if (hook := _hook_on(graph, v)) is not None:
            return Fails(_about(matches.VALUE_HOOKED, v), v, use=hook)
    gone = frozenset(v for v in held | between if v not in live and (v in held or not _views(v, operands)))
    return _lost_write(graph, gone | set(results), live) or RemovedValues(gone - set(results), metadata)


def _hook_on(graph: Graph, v: Value) -> Value | None:
    """The call that watches the gradient of `v`."""
    reads = [u for u in graph.users[v] if u.op == ATTRIBUTE and u.data in _WATCHES]
    calls = [c for u in (v, *reads) for c in graph.users[u] if c.op == CALL]
    named = (c for c in calls if isinstance(c.data, tuple) and str(c.data[0]).rpartition(".")[2] in _WATCHES)
    return next(named, None)


def _views(v: Value, operands: frozenset[Value]) -> bool:
    """Whether `v` is an operand under another shape or dtype, which may stay beside the fused operation."""
    while v not in operands:
        if v.op not in OPS or OPS[v.op].effect != "view":
            return False
        v = v.inputs[0]
    return True


def written_between(graph: Graph, operands: frozenset[Value], first: int, results: tuple[Value, ...]) -> Fails | None:
    """A reason to decline if what the match reads is overwritten before the fused operation would read it."""
    bases = {base for v in operands for base in memory_of(v)}
    wholes = {base for v in operands for base in memory_of(v, through_parts=True)}
    start = bisect_right(graph.writes, first, key=lambda w: w.at)
    for write in graph.writes[start : bisect_right(graph.writes, results[-1].serial, key=lambda w: w.at)]:
        spend()
        own = write.result in operands or write.result in results  # h += x, where h is the sum that is replaced
        if not own and _shares(bases, wholes, write.target):
            return Fails(because(matches.OPERAND_WRITTEN), write.target, use=write.result)
    for call in graph.values[first : results[-1].serial]:
        ignored = call.op == CALL and _only_looked_at(graph, call) and not _harmless(call)
        receivers = [i.inputs[0] for i in call.inputs if i.op == ATTRIBUTE]  # m of m.zero_()
        given = {base for v in (*call.inputs, *receivers) for base in memory_of(v)} if ignored else set[Value]()
        if given & bases:
            held = min((v for v in operands if given.intersection(memory_of(v))), key=lambda v: v.serial)
            return Fails(because(matches.OPERAND_PASSED_ON), held, use=call)
    return None


def _only_looked_at(graph: Graph, call: Value) -> bool:
    """Whether nothing is made of a call's result, as of that of `m.zero_()` in a statement of its own."""
    return all(u.op == SINK and u.data == LOOKED_AT for u in graph.users.get(call, ()))


def _harmless(call: Value) -> bool:
    return isinstance(call.data, tuple) and call.data[0] in HARMLESS


def written_after(graph: Graph, results: tuple[Value, ...]) -> Fails | None:
    """A reason to decline if a result that the gradient needs is written in place."""
    first = min(r.serial for r in results)  # what was written before is no view of what is made later
    for write in graph.writes[bisect_right(graph.writes, first, key=lambda w: w.at) :]:
        chain = memory_of(write.target)
        spend(len(chain))
        if any(r in chain for r in results) and write.result not in results:
            return Fails(because(matches.RESULT_WRITTEN), write.target, use=write.result)
    return None


def may_share_memory(v: Value, other: Value) -> bool:
    """Whether two values may lie in one memory, as far as the operations that made them tell."""
    wholes = set(memory_of(v, through_parts=True))
    return bool(wholes.intersection(memory_of(other, through_parts=True)))


def _shares(bases: set[Value], wholes: set[Value], written: Value) -> bool:
    """Whether what is `written` may lie in the memory of `bases`. Parts of one tensor do not lie in each other, but in
    the tensor, one of the `wholes`."""
    whole = memory_of(written, through_parts=True)
    return bool(wholes.intersection(memory_of(written)) or bases.intersection(whole))


def _computed_within(
    results: tuple[Value, ...], operands: frozenset[Value], steps: frozenset[Value], sources: frozenset[Value]
) -> frozenset[Value]:
    """Ancestors of the results, them included, that are computed from the contents of `sources`.

    Not looked past: what the operands were computed from, unless it is one of `steps`. Values are visited from the
    last to the first, as far back as a value inside may still be found, so that a match deep in a long function costs
    what is near it.
    """
    inside, outside = set(results), set(operands)
    by_serial = {v.serial: v for v in (*results, *operands)}
    todo = [-serial for serial in by_serial]
    heapify(todo)
    waiting = len(inside)  # how many of `todo` may be inside
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


def _computed_from(v: Value, gone: frozenset[Value]) -> Value | None:
    """A value of `gone` whose contents `v` was computed from."""
    first = min((g.serial for g in gone), default=0)
    seen, todo = set[Value](), [v]
    while todo:
        v = todo.pop()
        if v in gone:
            return v
        if v not in seen and not is_metadata(v):
            seen.add(v)
            spend()
            todo.extend(i for i in v.inputs if i.serial >= first)  # what is earlier was computed from none of them
    return None


class _Needed:
    """What the program still needs once `results` no longer need their inputs, and the sink or call that does.

    A live read of the shape or dtype of what is `held` needs none of it: it can be read off something else.
    """

    def __init__(self, graph: Graph, results: tuple[Value, ...], held: frozenset[Value]) -> None:
        self.graph, self.results, self.held = graph, results, held
        self._uses: dict[Value, Value | None] = {}
        self._last = max(v.serial for v in (*results, *held))

    def __contains__(self, v: Value) -> bool:
        return self._use(v) is not None

    def __getitem__(self, v: Value) -> Value:
        use = self._use(v)
        assert use is not None, f"nothing needs {v!r}"
        return use

    def _use(self, v: Value) -> Value | None:
        """The first sink or call in the program that `v` reaches: users come after what they use."""
        if v not in self._uses:
            seen, todo = {v.serial: v}, [v.serial]
            while todo and v not in self._uses:
                reached = seen[heappop(todo)]
                spend()
                later = self.graph.escapes()[reached] if reached.serial > self._last else None
                if later is not None and later is not reached:  # nothing between is a result, or held
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
        """What needs `v`: not the results, and no read of the shape of what is held."""
        for user in self.graph.users.get(v, ()):
            read = is_metadata(user) and v in self.held and v not in self.results
            if user not in self.results and not read:
                yield user


def _lost_write(graph: Graph, gone: frozenset[Value], live: _Needed) -> Fails | None:
    """A step that writes in place to what others may see would no longer write."""
    since = min((v.serial for v in gone), default=0)
    for write in graph.writes[bisect_right(graph.writes, since, key=lambda w: w.at) :]:
        if write.result not in gone or write.target in gone:
            continue
        target = write.target
        local = target.op in OPS and OPS[target.op].effect in ("pure", "random") and target not in live
        if not local:
            return Fails(because(matches.STEP_WRITES), target, use=write.result)
    return None


def _needed_by(use: Value, v: Value) -> Reason:
    """Why `v` must stay: what `use` does with it."""
    if isinstance(use.data, Reason):
        return use.data.with_data(**_names(v))
    assert isinstance(use.data, tuple), "what is no sink is a call, with its name and its keywords"
    return because(matches.VALUE_USED_BY, call=use.data[0], **_names(v))


def _about(code: Code, v: Value) -> Reason:
    return because(code, **_names(v))


def is_metadata(v: Value) -> bool:
    """Whether `v` reads a tensor's shape, dtype or device, or that it is there at all, never its contents."""
    if v.op == IS_NONE:
        return True
    return v.op == ATTRIBUTE and v.data in METADATA or v.op in OPS and OPS[v.op].effect == "metadata"


def memory_of(v: Value, through_parts: bool = False) -> list[Value]:
    """`v` and the values whose memory it may share; with `through_parts`, those too that it is one part of several
    of."""
    chain, source = [v], _source(v, through_parts)
    while source is not None:
        chain.append(source)
        source = _source(source, through_parts)
    return chain


def _source(v: Value, through_parts: bool) -> Value | None:
    """What `v` may be a view of."""
    if not v.inputs:
        return None
    if v.op == ITEM:
        return v.inputs[0] if v.inputs[0].op not in _SEPARATE or through_parts else None
    if v.op == CALL and isinstance(v.data, tuple):
        return _viewed_by_call(v, str(v.data[0]).rpartition(".")[2])
    shares = v.op == "identity" or v.op in OPS and OPS[v.op].effect == "view" or v.op == ATTRIBUTE and v.data in _SHARED
    return v.inputs[0] if shares else None


def _viewed_by_call(call: Value, name: str) -> Value | None:
    """q of q.detach() and of torch.flatten(q), which are no operations of the vocabulary."""
    if name not in _VIEWS and not written_in_place(name):
        return None
    function = call.inputs[0]
    if function.op != ATTRIBUTE or function.data != name:
        return function  # a live call names its arguments only
    receiver = function.inputs[0]
    return receiver if receiver.op != MODULE else call.inputs[1] if len(call.inputs) > 1 else None


def written_in_place(name: str) -> bool:
    """Whether a method gives back what it is called on: x.requires_grad_()."""
    return name.endswith("_") and not name.endswith("__")


_NAMES = {
    "softmax": "the matrix of probabilities",
    "dropout": "the matrix of probabilities after dropout",
    "matmul": "a product of matrices",
    "einsum": "a product of matrices",
    "add": "a sum",
    "mul": "a product",
    "linear": "the output of a linear layer",
}


def _names(v: Value) -> dict[str, str]:
    """How a reader would call `v`: without its name, and before it."""
    known = _NAMES.get(v.op, "")
    return {"what": known or f"an intermediate value ({v.op})", "which": known or "the intermediate value"}
