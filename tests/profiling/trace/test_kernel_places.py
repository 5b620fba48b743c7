"""Sequences of kernels in the layers of a recorded trace."""

from __future__ import annotations

import pytest

from autofuse.profiling.trace.profile import profile_of_traces
from autofuse.profiling.trace.trace import Trace
from tests.profiling.trace.building import Entry, entry, kernel, launch, step, trace

GEMM, SOFTMAX = "ampere_bf16_s16816gemm_bf16_128x256_tn", "void softmax_warp_forward<float>()"
SCALE = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>()"
ATTENTION = ((GEMM, 10), (SCALE, 20), (SOFTMAX, 30), (GEMM, 10))


def layer(number: int, at: float, *, kernels: tuple[tuple[str, float], ...] = ATTENTION) -> list[Entry]:
    """A block with the name that stacks give it. The kernels of its attention run 100 us later, one after the other."""
    made = [
        entry(f"nn.Module: DecoderLayer_{number}", "python_function", at, 50),
        entry(f"nn.Module: Attention_{number}", "python_function", at + 5, 40),
    ]
    begins = at + 100
    for i, (name, took) in enumerate(kernels):
        made += [
            launch(100 * number + i + 1, at + 10 + i),
            kernel(begins, took, name=name, correlation=100 * number + i + 1),
        ]
        begins += took
    return made


def job(**options: tuple[tuple[str, float], ...]) -> Trace:
    model = entry("nn.Module: Model_0", "python_function", 5, 600)
    return trace(step(1, 0, 1000), model, *(e for n in range(3) for e in layer(n, 10 + 200 * n, **options)))


def test_an_unfused_attention_is_reported_in_its_layer_with_its_predicted_saving() -> None:
    profile = profile_of_traces([job()])
    places = {layer.fqn: layer.places for layer in profile.layers if layer.places}
    assert set(places) == {f"Model.DecoderLayer.{n}.Attention" for n in range(3)}
    (place,) = places["Model.DecoderLayer.1.Attention"]
    assert (place.rule, place.status, place.calls) == ("AF101", "applies", 1)
    assert "4 kernels" in place.reason and "no code was read" in place.reason
    assert place.seconds == pytest.approx(70e-6) and place.predicted_saving == pytest.approx(50e-6)
    assert place.predicted_gain == pytest.approx(1000 / 950)


def test_layers_that_are_fused_have_no_place() -> None:
    profile = profile_of_traces([job(kernels=((GEMM, 10), ("flash_fwd_kernel", 40), (GEMM, 10)))])
    assert not any(layer.places for layer in profile.layers)


def test_kernels_outside_of_layers_are_not_a_place() -> None:
    loose = [e for e in layer(0, 10) if e["cat"] != "python_function"]
    assert not any(one.places for one in profile_of_traces([trace(step(1, 0, 1000), *loose)]).layers)
