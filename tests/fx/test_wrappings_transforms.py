"""torch.func, copies, processes and threads work with an optimized model, which runs fused where allowed."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.flop_counter import FlopCounterMode

import autofuse
from autofuse.fx.install.dispatch import is_installed
from tests.fx.wrapped import assert_close, fused_run, tokens
from tests.fx.wrapped_models import Transformer, model_of

ATTENTION = ("scaled_dot_product_attention",)


def fused_model(name: str = "gpt", example: bool = True) -> nn.Module:
    return autofuse.optimize(model_of(name), tokens() if example else None, verify=False)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def loss_of(model: nn.Module, parameters: dict[str, Tensor], given: Tensor) -> Tensor:
    return F.cross_entropy(functional_call(model, parameters, (given,)).flatten(0, 1), given.flatten())


def agree(one: Any, other: Any) -> None:
    for a, b in zip(torch.utils._pytree.tree_leaves(one), torch.utils._pytree.tree_leaves(other), strict=True):
        assert_close(a, b)


def attentions(work: Callable[[], object]) -> int:
    return fused_run(work, ATTENTION).get(*ATTENTION, 0)


@pytest.mark.parametrize("name", ["bert", "gpt", "llama"])
def test_functional_call_and_its_gradient_run_fused(name: str) -> None:
    plain, model = model_of(name), fused_model(name)
    other = {n: 1.1 * w for n, w in weights(plain).items()}
    agree(functional_call(plain, other, (tokens(),)), functional_call(model, other, (tokens(),)))
    agree(grad(lambda w: loss_of(plain, w, tokens()))(other), grad(lambda w: loss_of(model, w, tokens()))(other))
    assert attentions(lambda: functional_call(model, other, (tokens(),))) == 2
    assert attentions(lambda: grad(lambda w: loss_of(model, w, tokens()))(other)) == 2


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_sample_run_fused() -> None:
    def of_each(model: nn.Module) -> Any:
        return vmap(grad(lambda w, x: loss_of(model, w, x[None])), in_dims=(None, 0))(weights(model), tokens())

    model = fused_model()
    agree(of_each(model_of("gpt")), of_each(model))
    assert attentions(lambda: of_each(model)) == 2


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_an_ensemble_runs_fused(name: str) -> None:
    def of_all(models: list[nn.Module]) -> Tensor:
        stacked = stack_module_state(models)
        return vmap(lambda w, b: functional_call(models[0], (w, b), (tokens(),)))(*stacked)  # type: ignore[no-any-return]

    plain, members = ([make() for _ in range(2)] for make in (lambda: model_of(name), lambda: fused_model(name)))
    for models in (plain, members):
        for p in models[1].parameters():
            p.data.mul_(1.1)
    agree(of_all(plain), of_all(members))
    assert attentions(lambda: of_all(members)) == 2


def test_derivatives_that_no_kernel_has_are_those_of_the_original() -> None:
    plain, model, given = model_of("gpt").double(), fused_model().double(), tokens()
    model(given)  # in double it is another kind of call
    tangents = {n: torch.ones_like(w) for n, w in weights(plain).items()}
    agree(*(jvp(lambda w, m=m: loss_of(m, w, given), (weights(m),), (tangents,)) for m in (plain, model)))
    place = "blocks.0.attn.c_proj.bias"
    others = weights(plain)
    agree(*(hessian(lambda b, m=m: loss_of(m, {**others, place: b}, given))(others[place]) for m in (plain, model)))

    def penalised(m: nn.Module) -> Any:
        loss = F.cross_entropy(m(given).flatten(0, 1), given.flatten())
        first = torch.autograd.grad(loss, list(m.parameters()), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), list(m.parameters()))

    agree(penalised(plain), penalised(model))
    assert attentions(lambda: penalised(model)) >= 2


# Copies.


def test_copies_and_averages_of_weights_run_fused() -> None:
    for example in (True, False):
        model = fused_model(example=example)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        for p in model.parameters():
            p.data.add_(0.01)
        average.update_parameters(model)
        plain = model_of("gpt")
        plain.load_state_dict(average.module.state_dict())
        for made in (average, copy.deepcopy(model), copy.copy(model)):
            made(tokens())
            assert attentions(lambda m=made: m(tokens())) == 2
        assert_close(average(tokens()), plain(tokens()))


def test_a_saved_model_is_plain_and_can_be_optimized_again() -> None:
    model = fused_model()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for made in (pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert not any(map(is_installed, made.modules())) and attentions(lambda m=made: m(tokens())) == 0
        autofuse.optimize(made, tokens(), verify=False)
        assert attentions(lambda m=made: m(tokens())) == 2
        assert_close(made(tokens()), model(tokens()))


def _in_a_process(model: Transformer, answers: Any) -> None:
    arrived = any(map(is_installed, model.modules()))
    autofuse.optimize(model, tokens(), verify=False)
    answers.put((arrived, attentions(lambda: model(tokens())), model(tokens()).tolist()))


def test_a_spawned_process_gets_the_plain_model_and_optimizes_it() -> None:
    context = mp.get_context("spawn")
    answers, model = context.SimpleQueue(), fused_model()
    model.share_memory()
    process = context.Process(target=_in_a_process, args=(model, answers))
    process.start()
    arrived, ran, logits = answers.get()
    process.join()
    assert (arrived, ran) == (False, 2)
    assert_close(torch.tensor(logits), model(tokens()).detach())


def test_threads_may_call_one_model_at_once() -> None:
    model, expected, found = fused_model(example=False), model_of("gpt")(tokens()), list[Tensor]()
    threads = [threading.Thread(target=lambda: found.append(model(tokens()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for logits in found:
        assert_close(logits, expected)
    assert attentions(lambda: model(tokens())) == 2


def test_data_parallel_without_a_gpu_runs_fused() -> None:
    model = nn.DataParallel(fused_model())
    assert attentions(lambda: model(tokens())) == 2


# Modes.


@pytest.mark.parametrize("example", [True, False])
def test_inference_mode_runs_fused_and_training_after_it(example: bool) -> None:
    plain, model = model_of("gpt"), fused_model(example=example)
    with torch.inference_mode():
        assert_close(model(tokens()), plain(tokens()))
        assert attentions(lambda: model(tokens())) == 2
    loss = model(tokens()).square().sum()
    loss.backward()
    plain(tokens()).square().sum().backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, atol=1e-4, rtol=1e-4)  # sums of squares of order 10
    assert attentions(lambda: model(tokens())) == 2


def test_a_mode_that_counts_operators_does_not_keep_it_from_a_capture() -> None:
    model = fused_model("llama", example=False)
    with FlopCounterMode(display=False):
        model(tokens())  # a counting mode sees the operations of the original
    model(tokens())
    assert attentions(lambda: model(tokens())) == 2


def test_sizes_may_change_from_call_to_call() -> None:
    for example in (True, False):
        plain, model = model_of("gpt"), fused_model(example=example)
        for batch, length in ((1, 1), (5, 7), (2, 32), (3, 8), (0, 8)):
            given = torch.randint(0, 24, (batch, length))
            assert_close(model(given), plain(given))
            assert attentions(lambda m=model, x=given: m(x)) == 2
        assert not [f for f in autofuse.report(model).fallbacks if f.ran == "original"]
