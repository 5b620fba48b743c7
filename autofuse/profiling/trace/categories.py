"""Counts each kind of kernel (on a CPU, of operator) in one step, and sums its time.

Live profiles use `categories_of(scope_of(trace))`, too. The category follows from the name, with one exception:
everything that runs in an optimizer's step belongs to the optimizer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache

from autofuse.ir.operator_categories import COMPILED_GRAPH, ORDER, category_of, is_collective
from autofuse.profiling.trace import kernels
from autofuse.profiling.trace.phases import phase_of
from autofuse.profiling.trace.scope import Scope, with_own_time
from autofuse.profiling.trace.trace import Event
from autofuse.results.comparison import Category
from autofuse.results.kernel_totals import KernelTotal

LONGEST = 120  # characters of a kernel's name; longer names are cut


def categories_of(scope: Scope) -> Mapping[str, Category]:
    """Return counts and seconds of one step by category, in a fixed order, without categories that do not occur.

    Counts are rounded if the steps differ, and are at least 1. Seconds of kernels are their durations; kernels of
    several streams may overlap. Seconds of operators exclude the operators that they call.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    time_of: dict[str, int] = defaultdict(int)
    for category, name, nanoseconds in _events_of_gpus(scope) if scope.has_gpu else _events_of_host(scope):
        counts[category][name] += 1
        time_of[category] += nanoseconds
    return {name: _category(counts[name], scope.seconds(time_of[name]), scope) for name in ORDER if name in counts}


def kernels_of(scope: Scope) -> tuple[KernelTotal, ...]:
    """Return the time of each kernel (on a CPU, of each operator) in one step, the longest first."""
    counts: Counter[tuple[str, str]] = Counter()
    time_of: Counter[tuple[str, str]] = Counter()
    for category, name, nanoseconds in _events_of_gpus(scope) if scope.has_gpu else _events_of_host(scope):
        counts[category, name] += 1
        time_of[category, name] += nanoseconds
    return tuple(
        KernelTotal(name, category, counts[category, name] / scope.steps.count, scope.seconds(time))
        for (category, name), time in time_of.most_common()
    )


def kernel_category(work: Event, scope: Scope) -> str:
    """Return the category of a kernel or a copy, from its name and from the call that launched it."""
    if work.category != "kernel":
        return "copy"
    category = kernels.category_of(work.name)
    if category not in ("communication", "optimizer") and phase_of(work, scope) == "optimizer":
        return "optimizer"
    return category


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """Return a kernel's name without result type, uninformative namespaces and arguments, cut to LONGEST characters."""
    text = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("at::native::", "")
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "<") - (sign == ">")
        if sign == "(" and depth == 0 and at:
            text = text[:at].rstrip()
            break
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _category(names: Counter[str], seconds: float, scope: Scope) -> Category:
    each = {name: max(1, round(count / scope.steps.count)) for name, count in names.most_common()}
    return Category(sum(each.values()), seconds, each)


def _events_of_gpus(scope: Scope) -> Iterator[tuple[str, str, int]]:
    for work in scope.work:
        if nanoseconds := scope.nanoseconds(work):
            name = short_name(work.name) if work.category == "kernel" else work.name
            yield kernel_category(work, scope), name, nanoseconds


def _events_of_host(scope: Scope) -> Iterator[tuple[str, str, int]]:
    events = scope.trace.of("cpu_op", "user_annotation")
    # A collective appears as an operator and as its backend's range. Count the range if there is one.
    ranges = any(event.category == "user_annotation" and is_collective(event.name) for event in events)
    for event, own in with_own_time(events):
        category = category_of(event.name)
        if not category or not scope.begins(event):
            continue
        if event.category == "user_annotation" and category not in ("compiled", "communication"):
            continue  # users choose the names of their ranges
        if ranges and category == "communication" and event.category == "cpu_op":
            continue
        if category != "communication" and scope.marks.phase_at(event) == "optimizer":
            category = "optimizer"
        yield category, COMPILED_GRAPH if COMPILED_GRAPH in event.name else event.name, own
