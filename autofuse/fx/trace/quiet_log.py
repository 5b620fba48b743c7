"""Disables the log while code of the user runs on copies or on fakes, whose messages would not be about the user's run.

`logging.disable` holds for the process. Blocks in several threads may overlap, so the first one disables the log and
the last one restores it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_blocks = 0
_before = logging.NOTSET


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
