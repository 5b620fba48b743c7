"""How often each kind of kernel (on a CPU, of operator) runs in one step, and how long.

`categories_of(scope_of(trace))` is for live profiles too. Knows names' categories, and no phases but the optimizer's:
whatever runs under an optimizer's step is the optimizer's, however it is written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache

from autofuse.ir.operator_categories import COMPILED_GRAPH, ORDER, category_of, is_collective
from autofuse.profiling.trace import kernels
from autofuse.profiling.trace.phases import phase_of
from autofuse.profiling.trace.scope import Scope, nested
from autofuse.profiling.trace.trace import Event
from autofuse.results.comparison import Category
from autofuse.results.kernel_totals import KernelTotal

LONGEST = 120  # characters of a kernel's name


def categories_of(scope: Scope) -> Mapping[str, Category]:
    """Counts and seconds of one step by category, in a fixed order, those that do not occur left out.

    Counts are rounded where the steps differ, and at least 1. Seconds of kernels are their durations (those of several
    streams may overlap), of operators their own, without what they call.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    took: dict[str, int] = defaultdict(int)
    for category, name, nanoseconds in _of_gpus(scope) if scope.has_gpu else _of_host(scope):
        counts[category][name] += 1
        took[category] += nanoseconds
    return {name: _category(counts[name], scope.seconds(took[name]), scope) for name in ORDER if name in counts}


def kernels_of(scope: Scope) -> tuple[KernelTotal, ...]:
    """What each kernel, on a CPU each operator, takes in one step; the longest first."""
    counts: Counter[tuple[str, str]] = Counter()
    took: Counter[tuple[str, str]] = Counter()
    for category, name, nanoseconds in _of_gpus(scope) if scope.has_gpu else _of_host(scope):
        counts[category, name] += 1
        took[category, name] += nanoseconds
    return tuple(
        KernelTotal(name, category, counts[category, name] / scope.steps.count, scope.seconds(time))
        for (category, name), time in took.most_common()
    )


def kernel_category(work: Event, scope: Scope) -> str:
    """The category of a kernel or a copy, by its name and by what launched it."""
    if work.category != "kernel":
        return "copy"
    category = kernels.category_of(work.name)
    if category not in ("communication", "optimizer") and phase_of(work, scope) == "optimizer":
        return "optimizer"
    return category


@lru_cache(maxsize=65536)
def short(name: str) -> str:
    """A kernel's name without its result, namespaces that say nothing and arguments, cut where templates run on."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("at::native::", "")
    depth = 0
    for at, sign in enumerate(bare):
        depth += (sign == "<") - (sign == ">")
        if sign == "(" and depth == 0 and at:
            bare = bare[:at].rstrip()
            break
    return bare if len(bare) <= LONGEST else bare[: LONGEST - 1] + "…"


def _category(names: Counter[str], seconds: float, scope: Scope) -> Category:
    each = {name: max(1, round(count / scope.steps.count)) for name, count in names.most_common()}
    return Category(sum(each.values()), seconds, each)


def _of_gpus(scope: Scope) -> Iterator[tuple[str, str, int]]:
    for work in scope.work:
        if nanoseconds := scope.nanoseconds(work):
            name = short(work.name) if work.category == "kernel" else work.name
            yield kernel_category(work, scope), name, nanoseconds


def _of_host(scope: Scope) -> Iterator[tuple[str, str, int]]:
    events = scope.trace.of("cpu_op", "user_annotation")
    # A collective is an operator, and the range in which its backend runs it: where there is such a range, it counts.
    ranges = any(event.category == "user_annotation" and is_collective(event.name) for event in events)
    for event, own in nested(events):
        category = category_of(event.name)
        if not category or not scope.begins(event):
            continue
        if event.category == "user_annotation" and category not in ("compiled", "communication"):
            continue  # what a user calls a range says nothing
        if ranges and category == "communication" and event.category == "cpu_op":
            continue
        if category != "communication" and scope.marks.phase_at(event) == "optimizer":
            category = "optimizer"
        yield category, COMPILED_GRAPH if COMPILED_GRAPH in event.name else event.name, own
