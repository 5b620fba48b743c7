"""Work in its own thread sees nothing of the caller's thread, and its errors reach the caller."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

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
