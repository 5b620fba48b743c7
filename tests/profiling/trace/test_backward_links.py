"""Numbers of nodes and threads, in traces written by hand."""

from __future__ import annotations

from autofuse.profiling.trace.backward_links import (
    NODE,
    Forwards,
    forward_threads,
    sequence_number,
    with_sequence_numbers,
)
from autofuse.profiling.trace.trace import Event


def operator(name: str, known: int, thread: int = 1, start: int = 0) -> Event:
    return Event(f"aten::{name}", "cpu_op", start, 1, 1, thread, {"Sequence number": known, "Fwd thread id": 0})


def node(name: str, known: int, made_by: int = 1, thread: int = 1) -> Event:
    return Event(NODE + name, "cpu_op", 50, 1, 1, thread, {"Sequence number": known, "Fwd thread id": made_by})


def test_a_single_thread_created_all_nodes() -> None:
    assert forward_threads([operator("mm", 1), node("MulBackward0", 1, made_by=7)]) == {7: (1, 1)}


def test_of_several_threads_the_one_with_matching_operator_names_is_chosen() -> None:
    events = [
        operator("mm", 1, thread=1), operator("_softmax", 2, thread=1),
        operator("gelu", 1, thread=9), operator("native_layer_norm", 2, thread=9),
        node("SoftmaxBackward0", 2, made_by=1), node("MmBackward0", 1, made_by=1),
        node("NativeLayerNormBackward0", 2, made_by=2), node("GeluBackward0", 1, made_by=2),
    ]  # fmt: skip
    assert forward_threads(events) == {1: (1, 1), 2: (1, 9)}


def test_without_any_forward_there_is_no_thread() -> None:
    assert forward_threads([node("MulBackward0", 1)]) == {}


def test_a_node_belongs_to_the_last_operator_recorded_with_its_number() -> None:
    forwards = Forwards[str]({1: (1, 1)})
    forwards.note(operator("linear", 4), "outer")
    forwards.note(operator("t", 4), "inner")
    assert forwards.owner(node("TBackward0", 4)) == "inner"


def test_a_node_without_its_own_operator_belongs_to_the_operator_that_created_several() -> None:
    forwards = Forwards[str]({1: (1, 1)})
    forwards.note(operator("index_put_", 4), "one")
    forwards.note(operator("mm", 7), "other")
    assert [forwards.owner(node("CopySlices", known)) for known in (3, 4, 6, 7)] == [None, "one", "one", "other"]


def test_equal_numbers_of_other_threads_are_distinguished() -> None:
    forwards = Forwards[str]({1: (1, 1), 2: (1, 9)})
    forwards.note(operator("mm", 4, thread=1), "one")
    forwards.note(operator("mm", 4, thread=9), "other")
    assert forwards.owner(node("MmBackward0", 4, made_by=2)) == "other"
    assert forwards.owner(node("MmBackward0", 4, made_by=3)) is None


def test_a_node_that_hooks_run_before_has_the_number_of_the_event_within() -> None:
    outer = Event(NODE + "AddBackward0", "cpu_op", 10, 20, 1, 1, {})
    hook = Event("aten::copy_", "cpu_op", 12, 3, 1, 1, {"Sequence number": 9})
    inner = Event("AddBackward0", "cpu_op", 16, 10, 1, 1, {"Sequence number": 4, "Fwd thread id": 1})
    later = Event("AddBackward0", "cpu_op", 40, 10, 1, 1, {"Sequence number": 5, "Fwd thread id": 1})
    assert [sequence_number(event) for event in with_sequence_numbers([outer, hook, inner])] == [4, 9, 4]
    assert [sequence_number(event) for event in with_sequence_numbers([outer, hook, later])] == [None, 9, 5]
