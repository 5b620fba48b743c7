"""In training, logits are lazy if a model returns them with its loss, or if the caller computes the loss."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import autofuse
from autofuse.fx.lazy.linear import lazy_at_any_size
from autofuse.fx.lazy.tensor import LazyLogits
from autofuse.fx.session.lazy_heads import why_no_loss

WIDTH, CLASSES = 8, 600


@pytest.fixture(autouse=True)
def small_logits_are_lazy() -> Iterator[None]:
    """Make small logits lazy too. They fit into one block, so nothing is compiled."""
    with lazy_at_any_size():
        yield


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class Gpt(nn.Module):
    """Like nanoGPT: it always returns logits, and a loss if there are targets."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.embedding.weight = self.head.weight

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.head(torch.tanh(self.body(self.embedding(x))))
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return self.returned(loss, logits)

    def returned(self, loss: Tensor, logits: Tensor) -> Any:
        return logits, loss


class InADict(Gpt):
    def returned(self, loss: Tensor, logits: Tensor) -> Any:
        return {"loss": loss, "logits": logits}


class InADataclass(Gpt):
    def returned(self, loss: Tensor, logits: Tensor) -> Any:
        return Output(loss, logits)


class LossAlone(Gpt):
    def returned(self, loss: Tensor, logits: Tensor) -> Any:
        return loss


class Accuracy(Gpt):
    def returned(self, loss: Tensor, logits: Tensor) -> Any:
        return loss, (logits.argmax(-1) == 0).float().mean()


def inputs() -> dict[str, Tensor]:
    x = torch.randint(CLASSES, (2, 16), generator=torch.Generator().manual_seed(1))
    return {"x": x, "targets": x.roll(-1, 1)}


def optimized(model: nn.Module, **options: Any) -> nn.Module:
    given = options.pop("given", inputs())
    return autofuse.optimize(model, given, tune=False, **options).train()


def logits_of(result: Any) -> Any:
    return next(t for t in _tensors(result) if t.ndim == 3)


def loss_of(result: Any) -> Tensor:
    return next(t for t in _tensors(result) if t.ndim == 0)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    found = (
        result if isinstance(result, tuple) else list((result if isinstance(result, dict) else vars(result)).values())
    )
    return list(found)


def is_lazy(model: nn.Module) -> bool:
    return isinstance(logits_of(model(**inputs())), LazyLogits)


@pytest.mark.parametrize("kind", [Gpt, InADict, InADataclass])
def test_logits_returned_with_a_loss_are_lazy_and_five_steps_are_equal(kind: type[Gpt]) -> None:
    torch.manual_seed(0)
    plain = kind().double()
    model = optimized(copy.deepcopy(plain))
    sites = [s for s in autofuse.report(model) if s.rule == "AF502"]
    assert [(s.status, s.module) for s in sites] == [("fused", "")]
    assert sites[0].line is not None and sites[0].file.endswith("test_lazy_heads.py")
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (plain, model)]
    for _ in range(5):
        results = []
        for each, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            results.append(each(**inputs()))
            loss_of(results[-1]).backward()
            optimizer.step()
        assert isinstance(logits_of(results[1]), LazyLogits) and not logits_of(results[1]).is_computed
        torch.testing.assert_close(loss_of(results[1]), loss_of(results[0]), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(logits_of(results[1]) + 0, logits_of(results[0]), atol=1e-11, rtol=1e-11)
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q, p, atol=1e-10, rtol=1e-10)
    assert autofuse.report(model).fallbacks == ()


def test_in_evaluation_logits_are_a_plain_tensor() -> None:
    model = optimized(Gpt()).eval()
    assert type(logits_of(model(**inputs()))) is Tensor
    with torch.no_grad():
        assert type(logits_of(model.train()(**inputs()))) is Tensor


def test_loss_fn_declares_a_loss_outside_the_model() -> None:
    def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))

    torch.manual_seed(0)
    plain = Gpt().double()
    given = inputs()
    model = optimized(copy.deepcopy(plain), given=given["x"], loss_fn=loss_fn)
    assert [(s.rule, s.module) for s in autofuse.report(model).with_status("fused") if s.rule == "AF502"] == [
        ("AF502", "")
    ]
    for each in (plain, model):
        loss_fn(each(given["x"]), given["targets"]).backward()
    assert isinstance(model(given["x"]), LazyLogits)
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("options", [{"ignore": "AF502"}, {"select": "AF1"}, {"modules": ["body"]}])
def test_options_can_keep_logits_plain(options: dict[str, Any]) -> None:
    assert not is_lazy(optimized(Gpt(), **options))


def test_logits_that_the_model_reads_stay_plain() -> None:
    model = optimized(Accuracy())
    assert "forward" not in model.head.__dict__


def test_without_loss_fn_returned_logits_stay_plain() -> None:
    model = optimized(Gpt(), given=inputs()["x"])
    assert type(model(inputs()["x"])) is Tensor


class NormOfLogits(nn.Module):
    """The loss and the reader of the logits are in different modules, so no graph of one module has both."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.loss, self.metric = Gpt(), Loss(), Norm()

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.model(x)
        return self.loss(logits, targets), self.metric(logits)


class Loss(nn.Module):
    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Norm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach().norm()


def test_the_report_says_where_the_model_reads_the_output_of_a_head() -> None:
    with_reason = [s for s in autofuse.report(optimized(NormOfLogits())) if s.reason_code == "logits-read"]
    assert [(s.rule, s.status) for s in with_reason] == [("AF502", "declined")]
    line = int(with_reason[0].reason.split("model.head is read at test_lazy_heads.py:")[1].split()[0])
    assert "norm()" in Path(__file__).read_text().splitlines()[line - 1]


def test_the_report_of_a_head_without_a_loss_says_what_to_do() -> None:
    x = torch.randint(CLASSES, (2, 64))
    sites = autofuse.report(optimized(Gpt(), given={"x": x})).sites
    assert [(s.rule, s.status, s.reason_code) for s in sites] == [("AF502", "declined", "no-loss-seen")]
    assert "output of head" in sites[0].reason and "loss_fn" in sites[0].advice
    few = autofuse.report(optimized(Gpt(), given={"x": x[:, :4]}))
    assert not few.sites, "so few logits would not be lazy"


def test_a_loss_fn_that_is_not_callable_is_an_error() -> None:
    with pytest.raises(TypeError, match="loss_fn"):
        optimized(Gpt(), loss_fn="cross_entropy")


def _free(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    monkeypatch.setattr("autofuse.fx.session.memory_room.free_bytes", lambda _: free)


def long_inputs() -> Tensor:
    return torch.randint(CLASSES, (8, 260))


class Attentive(Gpt):
    """The gradient of the bias of its key is zero apart from rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        h = self.embedding(x)
        h = F.softmax(self.query(h) @ self.key(h).transpose(-2, -1), -1) @ self.value(h)
        logits = self.head(h)
        return logits if targets is None else (logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_that_are_zero_apart_from_rounding_do_not_differ(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = Attentive().to(dtype)
    model = autofuse.optimize(copy.deepcopy(plain), inputs()["x"], loss_fn=F.cross_entropy, tune=False)
    (site,) = [s for s in autofuse.report(model).sites if s.rule == "AF502"]
    assert (site.status, site.reason) == ("fused", "")
    assert isinstance(model(inputs()["x"]), LazyLogits)


def test_a_head_is_checked_on_a_part_of_the_call_if_the_whole_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    plain, given = Gpt(), long_inputs()
    _free(monkeypatch, 10 * 2**20)  # of the whole, the logits in float64 alone take 10 MB
    model = optimized(copy.deepcopy(plain), given=given, loss_fn=F.cross_entropy)
    assert isinstance(model(given), LazyLogits)
    losses = [F.cross_entropy(m(given).flatten(0, 1), given.flatten()) for m in (plain, model)]
    for each in losses:
        each.backward()
    torch.testing.assert_close(losses[1], losses[0])
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, atol=1e-6, rtol=1e-4)


def test_the_report_says_that_memory_does_not_suffice_for_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    given = long_inputs()
    _free(monkeypatch, 2**10)
    model = optimized(Gpt(), given=given, loss_fn=F.cross_entropy)
    assert type(model(given)) is Tensor
    (site,) = [s for s in autofuse.report(model).sites if s.reason_code == "logits-unchecked"]
    assert site.status == "declined" and "takes about" in site.reason and site.advice


@pytest.mark.parametrize("device, classes, name", [
    ("cuda", 601, "slow-products"), ("cuda", 608, "no-loss-seen"), ("cpu", 601, "no-loss-seen"),
])  # fmt: skip
def test_the_reason_says_when_a_gpu_has_no_fast_products_for_a_head(device: str, classes: int, name: str) -> None:
    weight = FakeTensor(FakeTensorMode(), torch.empty(classes, 8, device="meta"), torch.device(device))
    with FakeTensorMode(allow_non_fake_inputs=True):
        head = nn.Linear(8, classes)
        head.weight = nn.Parameter(weight, requires_grad=False)
    assert why_no_loss("head", head).code.name == name


def test_restore_restores_the_forward_of_the_layer() -> None:
    model = optimized(Gpt())
    before = set(autofuse.restore(model).head.__dict__)
    assert before == set(Gpt().head.__dict__) and not is_lazy(model)


@pytest.mark.parametrize(("copied", "lazy"), [(copy.deepcopy, True), (lambda m: pickle.loads(pickle.dumps(m)), False)])
def test_a_copy_of_the_model(copied: Callable[[nn.Module], nn.Module], lazy: bool) -> None:
    model = optimized(Gpt())
    other = copied(model)
    assert is_lazy(other) == lazy and is_lazy(model)
    result = other(**inputs())
    loss_of(result).backward()
    torch.testing.assert_close(loss_of(result), loss_of(model(**inputs())))


def test_a_state_dict_and_a_script_are_unchanged() -> None:
    model = optimized(Gpt())
    assert model.state_dict().keys() == Gpt().state_dict().keys()
    scripted = torch.jit.script(model.head)  # type: ignore[no-untyped-call]
    x = torch.randn(2, WIDTH)
    torch.testing.assert_close(scripted(x), F.linear(x, model.head.weight))


def test_gradients_accumulate_over_stored_outputs() -> None:
    torch.manual_seed(0)
    plain = Gpt().double()
    model = optimized(copy.deepcopy(plain))
    kept: list[list[Any]] = [[], []]
    for each, results in zip((plain, model), kept, strict=True):
        for _ in range(3):
            results.append(each(**inputs()))
            (loss_of(results[-1]) / 3).backward()
        torch.optim.SGD(each.parameters(), 0.5).step()
    for expected, found in zip(*kept, strict=True):
        torch.testing.assert_close(logits_of(found).argmax(-1), logits_of(expected).argmax(-1))
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q, p, atol=1e-11, rtol=1e-11)


def test_a_head_that_the_fused_forward_contains_stays_plain() -> None:
    torch.manual_seed(0)
    x, targets = torch.randint(0, CLASSES, (2, 3, 5))
    model = autofuse.optimize(LossAlone(), (x, targets), tune=False)
    assert "forward" not in vars(model.head)
    model(x, targets).backward()
    report = autofuse.report(model)
    assert [s.rule for s in report.with_status("fused")] == ["AF502"]
    assert not report.fallbacks  # a lazy head has made the original forward run
