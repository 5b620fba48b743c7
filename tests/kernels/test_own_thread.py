"""Work in its own thread sees nothing of the caller's thread, and its errors reach the caller."""

from __future__ import annotations

import contextvars
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.kernels.own_thread import run_in_own_thread


def test_a_result_is_returned() -> None:
    assert run_in_own_thread(lambda: 3, "work") == 3


def test_an_error_is_raised() -> None:
    with pytest.raises(ValueError, match="no"):
        run_in_own_thread(lambda: int("no"), "work")


def test_neither_a_profiler_nor_a_mode_of_the_caller_is_active() -> None:
    seen: list[object] = []
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        with torch.no_grad():
            seen += run_in_own_thread(lambda: [sys.getprofile(), torch.is_grad_enabled()], "work")
    finally:
        sys.setprofile(before)
    assert seen == [None, True]


def test_the_stack_size_is_restored() -> None:
    before = threading.stack_size()
    run_in_own_thread(lambda: None, "work")
    assert threading.stack_size() == before


def test_an_idle_thread_takes_the_next_work_and_its_context_variables_are_new() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    idents = set()
    for _ in range(20):
        ident, value = run_in_own_thread(lambda: (threading.get_ident(), variable.get()), "work")
        run_in_own_thread(lambda: variable.set(1), "work")
        idents.add(ident)
        assert value == 0
    assert len(idents) <= 2, "a thread that just finished may not be idle yet"


def test_work_inside_of_work_has_another_thread() -> None:
    def outer() -> tuple[int, int]:
        return threading.get_ident(), run_in_own_thread(threading.get_ident, "inner work")

    first, second = run_in_own_thread(outer, "outer work")
    assert first != second


def test_errors_leave_the_thread_usable() -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            run_in_own_thread(lambda: int("no"), "work")
    assert run_in_own_thread(lambda: 3, "work") == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_threads_of_its_own() -> None:
    run_in_own_thread(lambda: None, "work")
    code = "import os\nfrom autofuse.kernels.own_thread import run_in_own_thread as run\nrun(lambda: None, 'work')\n"
    code += "child = os.fork()\nif not child:\n    os._exit(run(lambda: 7, 'work'))\n"
    code += "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_fake_tensors_in_one_work_after_another() -> None:
    """Threads that end would end the process here, if torch is built for CUDA and has no GPU (torch 2.11)."""

    def shape() -> tuple[int, ...]:
        with FakeTensorMode():
            return tuple(torch.empty(3).shape)

    assert [run_in_own_thread(shape, "work") for _ in range(4)] == [(3,)] * 4
