"""Runs the user's code on copies. A run stops before an effect that cannot be undone, such as a print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autofuse.fx.trace.ambient_state import preserve_generators
from autofuse.fx.trace.external_state import ExternalState, restore_external_state
from autofuse.fx.trace.quiet_log import quiet_log
from autofuse.fx.trace.source_lines import user_place
from autofuse.fx.trace.values import Untraceable
from autofuse.reasons.reason import Reason


@contextmanager
def without_effects() -> Iterator[ExternalState]:
    """Restore at the end of the block what code changed outside of its modules. Nothing is logged in the block.

    Raises:
        Untraceable: code was about to print, to write a file, to read an iterator. The user's code, or ours, may have
            caught the exception that stopped the run, so the end of the block raises it.
    """
    stopped: list[Reason] = []

    def stop(why: Reason, has_lasting_effect: bool) -> None:
        if has_lasting_effect:
            stopped.append(why)
            raise Untraceable(why, user_place())

    try:
        with preserve_generators(), quiet_log(), restore_external_state(stop, keeps_values=False) as outside:
            yield outside
    except Exception as error:
        if stopped:
            raise Untraceable(stopped[0]) from error
        raise
    if stopped:
        raise Untraceable(stopped[0])
