"""The log is off in a block, and as before after it, also if blocks of several threads overlap."""

from __future__ import annotations

import logging
import threading

import pytest

from autofuse.fx.trace.quiet_log import mute_fake_tensor_log, quiet_log
from autofuse.torch_private import FAKE_TENSOR_LOG


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


@pytest.mark.parametrize("disabled", [False, True])
def test_torchs_log_of_fake_tensors_is_as_before_after_blocks_that_overlap(
    disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger(FAKE_TENSOR_LOG)
    monkeypatch.setattr(log, "disabled", disabled)
    first, second = mute_fake_tensor_log(), mute_fake_tensor_log()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert log.disabled
    second.__exit__(None, None, None)
    assert log.disabled is disabled
