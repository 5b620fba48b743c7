"""Lazy logits behave like the tensor that they represent, whenever they are read and for every operation."""

from __future__ import annotations

import contextvars
import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autofuse.fx.lazy.head import make_lazy
from autofuse.fx.lazy.linear import lazy_at_any_size
from autofuse.fx.lazy.nodes import OperandsChanged
from autofuse.fx.lazy.tensor import LazyLogits

WIDTH, CLASSES, ROWS = 8, 300, 12


@pytest.fixture(autouse=True)
def small_logits_are_lazy() -> Iterator[None]:
    """Small logits are lazy, too. They fit into one block, so nothing is compiled."""
    with lazy_at_any_size():
        yield


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, CLASSES), target.view(-1))


class Step:
    """One training step of a model, and its result."""

    def __init__(self, lazy: bool) -> None:
        torch.manual_seed(0)
        self.model = Model()
        if lazy:
            make_lazy(self.model.head)
        self.target = torch.randint(CLASSES, (2, ROWS))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.5)
        self.logits = self.model(torch.randn(2, ROWS, WIDTH))

    def loss(self) -> Tensor:
        return cross_entropy(self.logits, self.target)


def assert_same(act: Callable[[Step], Any]) -> None:
    """Assert that the result of `act`, and the gradients after it, equal those of a layer that is not lazy."""
    found = []
    for lazy in (False, True):
        step = Step(lazy)
        assert isinstance(step.logits, LazyLogits) == lazy
        result = [t.detach().clone() for t in pytree.tree_leaves(act(step)) if isinstance(t, Tensor)]
        found.append([*result, *(p.grad for p in step.model.parameters())])
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-4)


READS: dict[str, Callable[[Tensor], Any]] = {
    "argmax": lambda x: x.argmax(-1),
    "detach": lambda x: x.detach(),
    "cpu": lambda x: x.cpu(),
    "double": lambda x: x.to(torch.float64),
    "item": lambda x: torch.tensor(x[0, 0, 0].item()),
    "tolist": lambda x: torch.tensor(x[0].tolist()),
    "numpy": lambda x: torch.tensor(x.detach().numpy()),
    "index by a tensor": lambda x: x[torch.tensor([1, 0])],
    "a mask": lambda x: x[x > 0].sum(),
    "some classes": lambda x: x[..., :10],
    "iteration": lambda x: [row.sum() for row in x],
    "softmax": lambda x: F.softmax(x, -1),
    "cat": lambda x: torch.cat([x, x]),
    "topk": lambda x: x.topk(3).values,
    "pad": lambda x: F.pad(x, (0, 1)),
    "clone": lambda x: x.clone(),
    "no_grad": lambda x: torch.no_grad()(lambda: x + 1)(),
    "inference mode": lambda x: torch.inference_mode()(lambda: (x + 1).clone())(),
    "data_ptr": lambda x: torch.tensor(x.data_ptr() != 0),
    "dlpack": lambda x: torch.from_dlpack(x.detach()),
    "vmap": lambda x: torch.vmap(lambda row: row.sum())(x.detach()),
    "torch.func.grad": lambda x: torch.func.grad(lambda z: z.pow(2).sum())(x.detach()),
    "deepcopy": lambda x: copy.deepcopy(x.detach()),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "len and shape": lambda x: torch.tensor([len(x), *x.shape, x.ndim, x.numel()]),
}


@pytest.mark.parametrize("when", ["before the backward pass", "after it", "after the optimizer's step"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_gives_the_numbers_of_the_forward_pass(read: Callable[[Tensor], Any], when: str) -> None:
    def act(step: Step) -> Any:
        loss = step.loss()
        found = read(step.logits) if when.startswith("before") else None
        loss.backward()
        found = read(step.logits) if when == "after it" else found
        step.optimizer.step()
        return found if found is not None else read(step.logits)

    assert_same(act)


def hooked_before(step: Step) -> Any:
    got: list[Tensor] = []
    step.logits.register_hook(lambda g: got.append(g.clone()))
    step.loss().backward()
    return got


def hooked_after(step: Step) -> Any:
    got: list[Tensor] = []
    loss = step.loss()
    step.logits.register_hook(lambda g: got.append(g.clone()))
    loss.backward()
    return got


def retained(step: Step) -> Any:
    loss = step.loss()
    step.logits.retain_grad()
    loss.backward()
    return step.logits.grad


def answers(step: Step) -> Any:
    return torch.autograd.grad(step.loss(), [step.logits, step.model.head.weight])


def accumulated(step: Step) -> Any:
    step.loss().backward(inputs=[step.logits, step.model.head.weight])
    return step.logits.grad


def penalized(step: Step) -> Any:
    (gradient,) = torch.autograd.grad(step.loss(), step.model.head.weight, create_graph=True)
    gradient.pow(2).sum().backward()


def with_another_loss(step: Step) -> Any:
    (step.loss() + step.logits.softmax(-1).pow(2).sum()).backward()


def twice(step: Step) -> Any:
    loss = step.loss()
    loss.backward(retain_graph=True)
    loss.backward()


def written_before(step: Step) -> Any:
    step.logits[:, 0] = 0
    step.loss().backward()
    return step.logits


def written_after_views(step: Step) -> Any:
    view, copied = step.logits.view(-1, CLASSES)[:5], step.logits * 2
    step.logits.mul_(3)
    (step.loss() + view.mean() + copied.mean()).backward()
    return view, copied, step.logits


def written_past_autograd(step: Step) -> Any:
    step.logits.data[0] = 0
    loss = step.loss()
    loss.backward()
    return loss


def data_set(step: Step) -> Any:
    step.loss().backward()
    step.logits.data = torch.zeros_like(step.logits.data)
    return step.logits + 1


def stepped_by_hand(step: Step) -> Any:
    step.loss().backward()
    for p in step.model.parameters():
        assert p.grad is not None
        p.data.add_(-0.1 * p.grad)  # has no version
    return step.logits


def under_a_function_of_autograd(step: Step) -> Any:
    class Squares(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.pow(2).sum()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return 2 * gradients[0] * ctx.saved_tensors[0]

    found: Tensor = Squares.apply(step.logits)  # type: ignore[no-untyped-call]
    found.backward()
    return found


def checkpointed(step: Step) -> Any:
    loss = torch.utils.checkpoint.checkpoint(cross_entropy, step.logits, step.target, use_reentrant=False)
    loss.backward()
    return loss


def saved_on_cpu(step: Step) -> Any:
    with torch.autograd.graph.save_on_cpu():
        loss = step.loss()
    loss.backward()
    return loss


def saved_to_a_file(step: Step) -> Any:
    file = io.BytesIO()
    torch.save({"logits": step.logits}, file)
    file.seek(0)
    loaded = torch.load(file)["logits"]
    assert type(loaded) is Tensor
    return loaded


@pytest.mark.parametrize(
    "act",
    [
        hooked_before, hooked_after, retained, answers, accumulated, penalized, with_another_loss, twice,
        written_before,
        written_after_views, written_past_autograd, data_set, stepped_by_hand, under_a_function_of_autograd,
        checkpointed, saved_on_cpu, saved_to_a_file,
    ],
)  # fmt: skip
def test_a_program_computes_the_same(act: Callable[[Step], Any]) -> None:
    assert_same(act)


def test_the_loss_alone_does_not_compute_the_logits() -> None:
    step = Step(lazy=True)
    step.loss().backward()
    assert isinstance(step.logits, LazyLogits) and not step.logits.is_computed


def test_printed_logits_are_those_of_the_plain_model() -> None:
    shown = [repr(Step(lazy=lazy).logits.detach()) for lazy in (False, True)]
    assert shown[0] == shown[1] and repr(Step(lazy=True).logits).startswith(shown[0][:20])


def test_weights_that_were_written_before_any_backward_pass_are_an_error_and_no_wrong_number() -> None:
    for write in (lambda p: p.data.mul_(2), lambda p: torch.no_grad()(lambda: p.mul_(2))()):
        step = Step(lazy=True)
        write(step.model.head.weight)
        with pytest.raises(OperandsChanged, match="overwritten"):
            step.logits.sum()


def test_a_change_of_shape_in_place_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="in place"):
        Step(lazy=True).logits.detach().unsqueeze_(0)


@pytest.mark.parametrize("how", ["evaluation", "no_grad", "hook", "saved-tensor hook", "another weight"])
def test_a_layer_behaves_like_torchs(how: str) -> None:
    model = Model()
    make_lazy(model.head)
    x, hooks = torch.randn(2, ROWS, WIDTH), torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    if how == "evaluation":
        model.eval()
    elif how == "hook":
        model.head.register_forward_hook(lambda *_: None)
    elif how == "another weight":
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    if how == "no_grad":
        with torch.no_grad():
            assert type(model(x)) is Tensor
    elif how == "saved-tensor hook":
        with hooks:
            assert type(model(x)) is Tensor
    else:
        assert type(model(x)) is Tensor


def test_few_logits_are_computed_at_once() -> None:
    model = Model()
    make_lazy(model.head)
    context = contextvars.Context()  # without requested reads
    assert type(context.run(model, torch.randn(2, ROWS, WIDTH))) is Tensor
