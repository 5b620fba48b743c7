"""How long steps wait for data and for their optimizer."""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from autofuse.profiling.live.waiting_times import WaitClock, WaitingTimes, rest_of, shares

CPU = torch.device("cpu")


class Slow(Dataset[Tensor]):
    """Each item takes two milliseconds."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.002)
        return torch.ones(3)


def test_the_time_in_next_counts_as_data():
    waiting = WaitClock()
    with waiting.clocked():
        for batch in DataLoader(Slow(), batch_size=4):
            time.sleep(0.001)
            assert batch.shape == (4, 3)
    waited = waiting.take()
    assert waited.data >= 8 * 0.002
    assert (waited.batches, waited.samples) == (2, 8)
    assert waiting.take() == WaitingTimes(0.0, 0.0, 0, 0)


def test_outside_of_the_block_nothing_is_clocked():
    waiting = WaitClock()
    with waiting.clocked():
        pass
    list(DataLoader(Slow(), batch_size=8))
    assert waiting.take().batches == 0


def test_single_items_of_a_loader_without_batches_are_no_samples():
    waiting = WaitClock()
    with waiting.clocked():
        list(DataLoader(Slow(), batch_size=None))
    assert waiting.take().samples is None


def test_the_optimizer_s_step_is_clocked_and_a_closure_is_known():
    waiting, model = WaitClock(), nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters())
    with waiting.clocked():
        optimizer.step()
        assert waiting.take().optimizer > 0
        assert not waiting.closures
        optimizer.step(lambda: 0.0)
    assert waiting.closures


def test_shares_are_of_all_timed_steps_together():
    waited = [WaitingTimes(0.1, 0.2, 1, 4, 0.4), WaitingTimes(0.3, 0.2, 1, 4, 0.4)]
    told = shares(waited, [1.0, 1.0], WaitClock(), CPU)
    assert [(share.name, share.seconds, share.share) for share in told] == [
        ("data", 0.2, 0.2), ("optimizer", 0.2, 0.2), ("backward", 0.4, 0.4),
    ]  # fmt: skip
    assert told[1].interval == (0.2, 0.2) and told[0].interval == (0.0, 1.0)  # of two steps that differ
    rest = rest_of(waited, [1.0, 1.0], told)
    assert rest is not None and rest.low < 0.2 < rest.high


def test_an_unknown_share_has_a_reason():
    waiting: Any = WaitClock()
    data, optimizer, backward = shares([WaitingTimes(0.0, 0.0, 0, 0)], [1.0], waiting, CPU)
    assert data.share is None and "no torch DataLoader" in data.reason
    assert optimizer.share is None and "no optimizer" in optimizer.reason
    assert backward.share is None and "no backward" in backward.reason
    assert "launches" in shares([WaitingTimes(0.0, 0.1, 0, 0)], [1.0], waiting, torch.device("cuda"))[1].reason
    waiting.closures = True
    assert "closure" in shares([WaitingTimes(0.0, 0.1, 0, 0)], [1.0], waiting, CPU)[1].reason


def test_backward_passes_and_zero_grad_are_clocked_and_nothing_twice():
    waiting, model = WaitClock(), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    untouched = torch.autograd.backward, torch.autograd.grad, torch.optim.Optimizer.zero_grad

    def slow(gradient: Tensor) -> Tensor:
        time.sleep(0.01)
        return gradient

    with waiting.clocked():
        out = model(torch.ones(1, 2))
        out.register_hook(slow)
        start = time.perf_counter()
        out.sum().backward()
        whole = time.perf_counter() - start
        assert 0.01 <= waiting.backward <= whole
        assert waiting.optimizer == 0.0
        torch.autograd.grad(model(torch.ones(1, 2)).sum(), list(model.parameters()))
        passed = waiting.backward
        optimizer.zero_grad()
        assert waiting.optimizer > 0
        assert waiting.take().backward == passed > 0.01
    assert untouched == (torch.autograd.backward, torch.autograd.grad, torch.optim.Optimizer.zero_grad)


def test_an_optimizer_that_steps_within_the_backward_pass_counts_once():
    waiting, weight = WaitClock(), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])

    def steps(_: Tensor) -> None:
        optimizer.step()

    weight.register_post_accumulate_grad_hook(steps)
    with waiting.clocked():
        start = time.perf_counter()
        weight.sum().backward()
        whole = time.perf_counter() - start
    assert waiting.optimizer > 0
    assert waiting.backward + waiting.optimizer <= whole
