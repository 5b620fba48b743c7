"""The memory estimate of a check is compared with the real use, and checks without enough memory are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autofuse
from autofuse.fx.session import memory_room as room
from autofuse.fx.session import site_checks
from autofuse.fx.session.planner import Planner
from autofuse.fx.trace.module_calls import calls_in_mode
from autofuse.fx.trace.tracer import ForwardArguments
from autofuse.measure import available_memory as measured_room
from autofuse.measure.created_bytes import BytesByDevice
from autofuse.measure.memory import allocation_events_peak
from tests.fx.conftest import Gpt, assert_same

GIB = 2**30


class Layer(nn.Module):
    """A hand-written decoder layer: attention with dense scores, a norm and a gated product, without biases."""

    def __init__(self, size: int, heads: int, wide: int) -> None:
        super().__init__()
        self.heads, self.weight = heads, nn.Parameter(torch.ones(size))
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.gate, self.up = nn.Linear(size, wide, bias=False), nn.Linear(size, wide, bias=False)
        self.down = nn.Linear(wide, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        split = self.qkv(normed).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split[0], split[1], split[2]
        scores = query @ key.transpose(-2, -1) / (size // self.heads) ** 0.5
        mixed = torch.softmax(scores.float(), -1).to(x.dtype) @ value
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, size))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def made_in(model: nn.Module, x: Tensor) -> BytesByDevice:
    made: dict[nn.Module, BytesByDevice] = {}
    calls_in_mode(model, ((x,), {}), True, made)
    return made[model]


def test_a_small_module_has_room() -> None:
    found = room.room_to_check(nn.Linear(4, 4), ((torch.ones(2, 4),), {}), None)
    assert found == room.Room("", None)


def test_the_reason_for_a_module_that_does_not_fit_has_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: GIB)
    with torch.device("meta"):
        large, x = nn.Linear(2**14, 2**14, bias=False), torch.empty(1, 2**14)
    # one GiB of parameters: four in float32, three in float64
    told = room.why_no_room(room.check_bytes(large, room.run_bytes(((x,), {}), BytesByDevice())))
    assert told == "checking takes about 10.0 GiB of memory on meta, and 1.0 GiB are free there"


def test_operators_tensors_count_for_the_whole_call_and_in_float64_for_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.device("meta"):
        layer, x = Layer(64, 4, 96), torch.empty(8, 4096, 64)
    made = made_in(layer, x)
    device = torch.device("meta")
    assert made[device] > 3 * 8 * 4 * 4096**2 * 4  # scores, scaled scores and softmax
    part = room.checked_part(((x,), {}))
    assert part == 2 * 128 / (8 * 4096)
    whole = room.check_bytes(layer, room.run_bytes(((x,), {}), made), part)
    monkeypatch.setattr(room, "free_bytes", lambda device: whole[device] - 1)
    found = room.room_to_check(layer, ((x,), {}), made)
    assert found.whole.startswith("checking takes about ") and found.part == ""


def test_a_check_of_a_layer_of_seven_billion_takes_at_most_twice_what_training_the_layer_takes() -> None:
    with torch.device("meta"):
        layer, x = Layer(4096, 32, 11008).bfloat16(), torch.empty(1, 2048, 4096, dtype=torch.bfloat16)
    device, call = torch.device("meta"), ((x,), dict[str, object]())
    made = made_in(layer, x)
    entries = sum(p.numel() for p in layer.parameters())
    training = 16 * entries + made[device]  # weights, gradients, and in float32 the weights and two moments of AdamW
    takes = room.check_bytes(layer, room.run_bytes(call, made), room.checked_part(call) or 1.0)
    assert takes[device] < 2 * training


@pytest.mark.night
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_estimate_is_within_a_factor_of_two_of_what_a_check_takes(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = Layer(256, 4, 704).to(dtype), torch.randn(2, 256, 256).to(dtype)
    peaks: list[tuple[int, int]] = []
    judged = site_checks.Checker._verify

    def measure_and_record(
        self: site_checks.Checker, planner: Planner, module: nn.Module, call: ForwardArguments
    ) -> object:
        found: list[site_checks.Verdict] = []
        peak = allocation_events_peak(lambda: found.append(judged(self, planner, module, call)))
        run = room.run_bytes(call, planner.created_bytes[module])
        peaks.append((peak, room.check_bytes(module, run, room.checked_part(call) or 1.0)[torch.device("cpu")]))
        return found[0]

    autofuse.optimize(model, x, tune=False)  # compiles everything first
    autofuse.restore(model)
    monkeypatch.setattr(site_checks.Checker, "_verify", measure_and_record)
    autofuse.optimize(model, x, tune=False)
    ((peak, estimate),) = peaks
    assert estimate / 2 < peak < estimate * 2, f"{peak / 2**20:.1f} MiB, estimated {estimate / 2**20:.1f} MiB"


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_room, "_CGROUP", tmp_path)
    cpu = torch.device("cpu")
    unlimited = measured_room.free_bytes(cpu)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert measured_room.free_bytes(cpu) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert (measured_room.free_bytes(cpu) is None) == (unlimited is None)


def test_a_module_that_cannot_be_checked_is_not_fused(tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda device: 10)
    plain, model = Gpt(), Gpt()
    model.load_state_dict(plain.state_dict())
    autofuse.optimize(model, tokens)
    report = autofuse.report(model)
    assert not report.with_status("fused")
    told = [s for s in report if s.rule == "AF101" and s.reason.startswith("not verified: checking takes")]
    assert told and {s.reason_code for s in told} == {"not-verified"}
    assert "(verify=False fuses unchecked)" in told[0].reason
    assert_same(plain, model, tokens)


def test_if_the_whole_model_does_not_fit_its_modules_are_checked(
    tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Gpt()
    whole = room.check_bytes(model, BytesByDevice())[torch.device("cpu")]
    monkeypatch.setattr(room, "free_bytes", lambda device: whole)  # nothing is left for the tensors of operators
    autofuse.optimize(model, tokens)
    report = autofuse.report(model)
    assert "AF101" in {s.rule for s in report.with_status("fused")}
    assert [s.reason for s in report if s.reason_code == "whole-not-verified"]


def test_if_only_a_part_of_the_call_fits_that_part_is_checked_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model, x = Layer(32, 2, 48), torch.randn(8, 256, 32)
    made = made_in(model, x)
    takes = room.check_bytes(model, room.run_bytes(((x,), {}), made), room.checked_part(((x,), {})) or 1.0)
    before = model(x)
    monkeypatch.setattr(room, "free_bytes", lambda device: takes[torch.device("cpu")] - 1)
    autofuse.optimize(model, x, tune=False)
    fused = autofuse.report(model).with_status("fused")
    assert fused and "2 of 8 rows, length 128 of 256 alone, for checking takes about " in fused[0].choice
    assert torch.allclose(model(x), before, atol=1e-5)


class OfOneSize(Layer):
    """It accepts the whole call and no part of it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(8, 256, 32))


def test_if_the_part_that_fits_decides_nothing_then_nothing_is_fused_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model, x = OfOneSize(32, 2, 48), torch.randn(8, 256, 32)
    run = room.run_bytes(((x,), {}), made_in(model, x))
    takes = room.check_bytes(model, run, room.checked_part(((x,), {})) or 1.0)
    before = model(x)
    monkeypatch.setattr(room, "free_bytes", lambda device: takes[torch.device("cpu")] - 1)
    autofuse.optimize(model, x, tune=False)
    report = autofuse.report(model)
    assert not report.with_status("fused")
    assert "not-verified" in {s.reason_code for s in report} and "differs" not in {s.reason_code for s in report}
    assert torch.equal(model(x), before)


def test_the_calls_for_a_head_are_those_that_fit_the_cheapest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cpu = Layer(32, 2, 48), torch.device("cpu")
    call = ((torch.randn(8, 256, 32),), {})
    made = made_in(model, call[0][0])
    whole = room.check_bytes(model, room.run_bytes(call, made))[cpu]
    step = room.step_bytes(model, made)[cpu]
    assert step < whole
    sizes = {}
    for free in (whole + 1, whole - 1, step - 1, 10):
        monkeypatch.setattr(room, "free_bytes", lambda device, free=free: free)
        found = room.calls_of_heads(model, call, made, compares=True)
        sizes[free] = [tuple(c[0][0].shape[:2]) for c in (found.read, *found.compared)], bool(found.why_none)
    part, rows = (2, 128), (2, 256)
    assert sizes[whole + 1] == ([(8, 256), part, rows, (8, 256)], False)
    assert sizes[whole - 1] == ([(8, 256), part, rows], False)
    assert sizes[step - 1][0][0] == part, "the whole step does not fit"
    assert sizes[10] == ([(8, 256)], True)


def test_without_a_comparison_only_the_step_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, call = Layer(32, 2, 48), ((torch.randn(8, 256, 32),), {})
    made = made_in(model, call[0][0])
    step = room.step_bytes(model, made)[torch.device("cpu")]
    monkeypatch.setattr(room, "free_bytes", lambda device: step + 1)
    assert room.calls_of_heads(model, call, made, compares=False) == (call, (), "")
    monkeypatch.setattr(room, "free_bytes", lambda device: step - 1)
    assert "takes about" in room.calls_of_heads(model, call, made, compares=False).why_none
