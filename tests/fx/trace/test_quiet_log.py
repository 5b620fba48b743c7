"""The log is off in a block, and as before after it, also if blocks of several threads overlap."""

from __future__ import annotations

import logging
import threading

import pytest

from autofuse.fx.trace.quiet_log import quiet_log


def is_on() -> bool:
    return logging.getLogger("autofuse").isEnabledFor(logging.ERROR)


def test_the_log_is_off_in_a_block_and_in_a_nested_one() -> None:
    with quiet_log():
        with quiet_log():
            assert not is_on()
        assert not is_on()
    assert is_on()


def test_an_error_in_a_block_restores_the_log() -> None:
    with pytest.raises(ValueError), quiet_log():
        raise ValueError
    assert is_on()


def test_a_level_that_was_disabled_before_stays_disabled() -> None:
    logging.disable(logging.INFO)
    try:
        with quiet_log():
            assert not is_on()
        assert logging.root.manager.disable == logging.INFO
    finally:
        logging.disable(logging.NOTSET)


def test_blocks_of_two_threads_that_overlap_restore_the_log() -> None:
    """The first block begins and ends before the second one ends."""
    is_inside, may_leave = threading.Event(), threading.Event()

    def second() -> None:
        with quiet_log():
            is_inside.set()
            may_leave.wait(10)

    other = threading.Thread(target=second)
    with quiet_log():
        other.start()
        assert is_inside.wait(10)
    assert not is_on()
    may_leave.set()
    other.join()
    assert is_on()


def test_what_another_thread_disabled_in_the_meantime_stays() -> None:
    try:
        with quiet_log():
            logging.disable(logging.WARNING)
        assert logging.root.manager.disable == logging.WARNING
    finally:
        logging.disable(logging.NOTSET)
