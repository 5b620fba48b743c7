"""Disables logs while code of the user runs on copies or on fakes, whose messages would not be about the user's run.

What disables a log holds for the process. Blocks in several threads may overlap, so the first one disables the log and
the last one restores it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from autofuse.torch_private import FAKE_TENSOR_LOG

_lock = threading.Lock()
_blocks = 0
_before = logging.NOTSET
_fake_blocks = 0
_was_disabled = False


@contextmanager
def quiet_log() -> Iterator[None]:
    """In the block, no message is logged in this process."""
    global _blocks, _before
    with _lock:
        if not _blocks:
            _before = logging.root.manager.disable
            logging.disable(logging.CRITICAL)
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and logging.root.manager.disable == logging.CRITICAL:  # nobody else has changed it
                logging.disable(_before)


@contextmanager
def mute_fake_tensor_log() -> Iterator[None]:
    """In the block, torch logs no errors on fake tensors. autofuse reports them as reasons."""
    global _fake_blocks, _was_disabled
    log = logging.getLogger(FAKE_TENSOR_LOG)
    with _lock:
        if not _fake_blocks:
            _was_disabled, log.disabled = log.disabled, True
        _fake_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _fake_blocks -= 1
            if not _fake_blocks:
                log.disabled = _was_disabled
