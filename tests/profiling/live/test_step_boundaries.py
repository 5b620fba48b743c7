"""Where the steps of programs end: optimizers, accumulation, two of them, scalers, backward hooks, calls."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from autofuse.profiling.live.step_boundaries import Boundaries, OutermostCalls


class Steps:
    """A model that counts its calls, and the number of calls in each step that was found."""

    def __init__(self, inference: bool = False) -> None:
        self.model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
        self.calls, self.steps, self.restarts = 0, list[int](), 0
        self.boundaries = Boundaries(self._ended, self._again, inference)

    def _ended(self) -> None:
        self.steps.append(self.calls)
        self.calls = 0

    def _again(self) -> None:
        self.restarts += 1

    def forward(self) -> Tensor:
        loss: Tensor = self.model(torch.ones(2, 3)).sum()
        self.calls += 1
        return loss

    def sgd(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.01)

    def of(self, act: Callable[[], object], times: int) -> list[int]:
        with self.boundaries.watching():
            for _ in range(times):
                act()
        return self.steps


def test_a_step_ends_with_the_optimizers_step_whatever_was_accumulated():
    program = Steps()
    optimizer = program.sgd()

    def act() -> None:
        for _ in range(3):
            program.forward().backward()
        optimizer.step()

    assert program.of(act, 4) == [3, 3, 3, 3]
    assert program.boundaries.by == "steps of the optimizer"
    assert program.boundaries.optimizers == [optimizer]


def test_two_optimizers_make_one_step():
    program = Steps()
    generator, critic = program.sgd(), torch.optim.Adam(program.model[0].parameters())

    def act() -> None:
        for optimizer in (critic, critic, generator):
            program.forward().backward()
            optimizer.step()

    assert program.of(act, 8)[-4:] == [3, 3, 3, 3]
    assert program.restarts


def test_an_optimizer_that_is_created_again_counts_as_the_same():
    program = Steps()

    def act() -> None:
        program.forward().backward()
        program.sgd().step()

    assert program.of(act, 4) == [1, 1, 1, 1]
    assert program.restarts == 0


def test_hooks_of_optimizers_may_be_added_and_removed_when_a_step_ends():
    program, heard = Steps(), list[str]()
    optimizer = program.sgd()
    hooks = [register_optimizer_step_post_hook(lambda *_: heard.append("theirs"))]

    def act() -> None:
        if len(program.steps) == 1:  # later than ours
            hooks.append(register_optimizer_step_post_hook(lambda *_: heard.append("later")))
        optimizer.step()

    def ended() -> None:
        program.steps.append(len(heard))
        hooks.pop().remove() if len(program.steps) > 2 and hooks else None

    program.boundaries = Boundaries(ended, lambda: None)
    assert program.of(act, 6) == [1, 3, 5, 6, 6, 6]


def test_a_closure_s_calls_belong_to_the_step():
    program = Steps()
    optimizer = torch.optim.LBFGS(program.model.parameters(), max_iter=1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = program.forward()
        loss.backward()
        return loss.item()

    assert len(program.of(lambda: optimizer.step(closure), 3)) == 3


def test_a_step_that_a_scaler_skips_ends_too():
    program = Steps()
    optimizer, scaler = program.sgd(), torch.amp.GradScaler("cpu")
    scales = iter([1.0, float("inf"), 1.0, 1.0])

    def act() -> None:
        scaler.scale(program.forward() * next(scales)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    assert program.of(act, 4) == [1, 1, 1, 1]


def test_optimizers_that_step_in_the_backward_pass_end_a_step_before_the_next_call():
    program = Steps()
    of = {p: torch.optim.SGD([p], lr=0.01) for p in program.model.parameters()}
    for parameter in program.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: of[p].step() and None)
    assert program.of(lambda: program.forward().backward(), 5) == [1, 1, 1, 1]


def test_calls_are_no_steps_while_an_optimizer_waits():
    program = Steps()
    made: list[torch.optim.Optimizer] = []

    def act() -> None:
        program.forward()
        made.extend([] if made else [program.sgd()])

    assert program.of(act, 20) == []


def test_with_inference_calls_are_the_steps_even_if_an_optimizer_steps():
    program = Steps(inference=True)
    optimizer = program.sgd()

    def act() -> None:
        program.forward().backward()
        optimizer.step()

    assert set(program.of(act, 8)[1:]) == {1}
    assert program.boundaries.by == "calls of the model"


def test_two_models_that_take_turns_make_one_step():
    program, head = Steps(inference=True), nn.Linear(1, 1)
    assert set(program.of(lambda: (head(torch.ones(1, 1)), program.forward()), 12)[-3:]) == {1}


def test_patches_are_removed_even_if_calls_raise():
    before = nn.Module.__call__, torch.amp.GradScaler.step
    program = Steps(inference=True)
    with pytest.raises(RuntimeError):
        program.of(lambda: program.model(torch.ones(2, 7)), 1)
    assert (nn.Module.__call__, torch.amp.GradScaler.step) == before
    program.forward()


def test_only_outermost_calls_are_observed_and_inner_calls_still_run():
    heard: list[nn.Module] = []
    calls, model = OutermostCalls(heard.append), Steps().model
    calls.watch()
    try:
        model(torch.ones(1, 3))
        with calls.lifted():
            model(torch.ones(1, 3))
        model(torch.ones(1, 3))
    finally:
        calls.leave()
    model(torch.ones(1, 3))
    assert heard == [model, model]
