"""Chooses the vectors for which Inductor compiles, with as few test programs as possible.

Before Inductor compiles anything, it compiles and loads small programs for each width that the processor has. It then
uses the widest for which they work, unless the user asks for another. Each program takes one to two seconds.

A region that compiles and loads shows the same as these programs. So a region is first compiled for the widest vectors
without any test program. If that fails, Inductor's programs decide, from the widest width on.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autofuse.torch_private import on_demand

_LOCK = threading.RLock()


@contextmanager
def presumed_widest_vectors() -> Iterator[bool]:
    """In this block, Inductor compiles for the widest vectors of the processor, without a test program.

    Afterwards, Inductor knows nothing about vectors that it did not know before.

    Yields:
        Whether test programs are left out. If they are, a failure to compile may be due to the vectors.
    """
    inductor = on_demand.cpu_vec_isa
    kinds: Any = getattr(inductor, "VecISA", None)
    check, every = getattr(kinds, "check_build", None), getattr(inductor, "valid_vec_isa_list", None)
    with _LOCK, only_widest_vectors():
        if check is None or every is None or not _may_stop_early(every):
            yield False
            return
        states = [(isa, dict(vars(isa))) for isa in inductor.supported_vec_isa_list]
        try:
            kinds.check_build = lambda *_: True
            _forget_answers(inductor)
            yield True
        finally:
            kinds.check_build = check
            for isa, state in states:
                vars(isa).update(state)
            _forget_answers(inductor)


def _forget_answers(inductor: Any) -> None:
    """Empties the caches in which Inductor's classes of vectors remember what works."""
    for cls in {base for isa in inductor.supported_vec_isa_list for base in type(isa).__mro__}:
        for member in vars(cls).values():
            if hasattr(member, "cache_clear"):
                member.cache_clear()


@contextmanager
def only_widest_vectors() -> Iterator[None]:
    """In this block, Inductor tries widths from the widest one on, and stops at the first for which compiling works.

    The code that it compiles is the same. Nothing changes if the user chose a width, if all were tried before, or on
    processors other than x86.
    """
    inductor = on_demand.cpu_vec_isa
    with _LOCK:
        every = getattr(inductor, "valid_vec_isa_list", None)
        if every is None or not _may_stop_early(every):
            yield
            return
        try:
            inductor.valid_vec_isa_list = lambda: _find_widest(inductor)
            yield
        finally:
            inductor.valid_vec_isa_list = every


def _may_stop_early(every: Any) -> bool:
    """Whether Inductor would use the first entry of its list, and has not made the list yet."""
    chosen = os.environ.get("ATEN_CPU_CAPABILITY") or on_demand.inductor_config.cpp.simdlen is not None
    info = getattr(every, "cache_info", None)
    tried_before = info is None or info().currsize > 0
    return not chosen and not tried_before and platform.machine() in ("x86_64", "AMD64")


def _find_widest(inductor: Any) -> list[Any]:
    """The first entry of Inductor's list, or an empty list. Inductor remembers for each entry whether it works."""
    features = inductor.x86_isa_checker()
    possible = (isa for isa in inductor.supported_vec_isa_list if all(f in features for f in str(isa).split()))
    return next(([isa] for isa in possible if isa), [])
