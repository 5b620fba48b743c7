"""Linear layers are padded where that was measured to be faster. Torch's products are made slow, as on a GPU."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
import autofuse.ops  # noqa: F401 - importing it defines the operations
from autofuse.fx.lazy.linear import lazy_at_any_size
from autofuse.fx.lazy.tensor import LazyLogits
from autofuse.kernels import decisions, tuning
from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.policy import using
from autofuse.results.sites import SiteReport

WIDTH, CLASSES, ROWS = 8, 603, 16
LINEAR = OPERATIONS["linear"]


def slowly(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`run`, with 4 ms of sleep, far beyond what the machine's noise can hide."""

    def wait_and_run(*operands: Any) -> Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0.004)
        return run(*operands)

    return wait_and_run


@pytest.fixture(params=["torch is slow"], autouse=True)
def providers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Padding is a candidate on this CPU. One of the two providers is slow."""
    monkeypatch.setenv("AUTOFUSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuning, "SHORTEST", {"cpu": 0.0})
    decisions.forget()
    before, padded, plain = LINEAR.providers, LINEAR.provider("padded"), LINEAR.torch
    first = replace(padded, devices=("cpu",))
    if request.param == "padding is slow":
        first, last = replace(first, run=slowly(first.run)), plain
    else:
        last = replace(plain, run=slowly(plain.run))
    LINEAR.providers, LINEAR.torch, LINEAR.least = (first, last), last, 0
    LINEAR.forget()
    with using(measured=True):
        yield
    LINEAR.providers, LINEAR.torch, LINEAR.least = before, plain, 2**16
    LINEAR.forget()
    decisions.forget()


class Gpt(nn.Module):
    """The caller computes the loss."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(classes, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, classes, bias=False)
        self.embedding.weight = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.body(self.embedding(x))))
        return logits


def tokens(rows: int = ROWS) -> Tensor:
    return torch.randint(CLASSES, (2, rows // 2), generator=torch.Generator().manual_seed(1))


def padded_calls(model: nn.Module, x: Tensor) -> int:
    before = LINEAR.counts.get("padded", 0)
    model(x)
    return LINEAR.counts.get("padded", 0) - before


def site_of(model: nn.Module) -> SiteReport:
    (site,) = [s for s in autofuse.report(model).sites if s.rule == "AF502"]
    return site


def test_a_head_is_padded_in_the_modes_in_which_it_is_faster() -> None:
    torch.manual_seed(0)
    plain = Gpt()
    model = autofuse.optimize(copy.deepcopy(plain), tokens())
    site = site_of(model)
    assert site.status == "fused" and "padded from 603 features" in site.kernel
    assert "training: " in site.reason and "inference: " in site.reason and "the original" in site.reason
    assert padded_calls(model, tokens()) == padded_calls(model.eval(), tokens()) == 1
    assert model.state_dict().keys() == plain.state_dict().keys()
    for each in (plain, model.train()):
        F.cross_entropy(each(tokens()).flatten(0, 1), tokens().flatten()).backward()
    for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert p.shape == q.shape and torch.equal(p, q), name
        torch.testing.assert_close(q.grad, p.grad, atol=1e-6, rtol=1e-5)


def test_calls_of_another_kind_run_as_before() -> None:
    model = autofuse.optimize(Gpt(), tokens())
    assert padded_calls(model, tokens(2)) == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert model(tokens()).dtype is torch.bfloat16


@pytest.mark.parametrize("providers", ["padding is slow"], indirect=True)
def test_a_head_stays_if_padding_is_slower_and_the_report_has_the_times() -> None:
    model = autofuse.optimize(Gpt(), tokens())
    assert "forward" not in vars(model.head) and padded_calls(model, tokens()) == 0
    site = site_of(model)
    assert (site.status, site.reason_code) == ("declined", "padding-not-faster") and "ms" in site.reason


def test_a_head_that_is_lazy_in_training_is_padded_in_evaluation() -> None:
    torch.manual_seed(0)
    plain = Gpt()
    with lazy_at_any_size():
        model = autofuse.optimize(copy.deepcopy(plain), tokens(), loss_fn=F.cross_entropy)
        assert site_of(model).status == "fused" and "blocks of rows" in site_of(model).kernel
        assert type(model(tokens())) is LazyLogits
        with torch.no_grad():
            assert padded_calls(model.eval(), tokens()) == 1
            torch.testing.assert_close(model(tokens()), plain(tokens()))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_not_dense_go_to_torch() -> None:
    head = autofuse.optimize(Gpt(), tokens()).head
    parts = [torch.randn(3, WIDTH), torch.randn(5, WIDTH)]
    found = head(torch.nested.nested_tensor(parts))
    for part, expected in zip(found.unbind(), parts, strict=True):
        torch.testing.assert_close(part, F.linear(expected, head.weight))


@pytest.mark.parametrize("change", [{"tune": False}, {"ignore": "AF502"}, {"modules": ["body"]}])
def test_a_head_that_is_not_measured_stays(change: dict[str, Any]) -> None:
    model = autofuse.optimize(Gpt(), tokens(), **change)
    assert not padded_calls(model.eval(), tokens())


def test_a_head_with_fast_products_is_not_measured() -> None:
    model = autofuse.optimize(Gpt(608), tokens())
    assert "forward" not in vars(model.head) and not [s for s in autofuse.report(model).sites if s.rule == "AF502"]


def test_restore_restores_the_forward_of_the_layer_and_optimize_brings_it_back() -> None:
    model = autofuse.optimize(Gpt(), tokens())
    autofuse.restore(model)
    assert set(vars(model.head)) == set(vars(Gpt().head)) and not padded_calls(model, tokens())
    assert padded_calls(autofuse.optimize(model, tokens()), tokens()) == 1


@pytest.mark.parametrize(("copied", "padded"), [(copy.deepcopy, 1), (lambda m: pickle.loads(pickle.dumps(m)), 0)])
def test_a_copy_of_the_model(copied: Callable[[nn.Module], nn.Module], padded: int) -> None:
    model = autofuse.optimize(Gpt(), tokens())
    other = copied(model)
    assert padded_calls(other, tokens()) == padded
    torch.testing.assert_close(other(tokens()), model(tokens()))
    other.head.weight.data.zero_()  # type: ignore[union-attr, operator]
    assert not other(tokens()).any() and model(tokens()).any()


def test_hooks_scripts_compilers_and_new_weights_see_a_linear_layer() -> None:
    model = autofuse.optimize(Gpt(), tokens())
    head, x = model.head, torch.randn(ROWS, WIDTH)
    seen: list[torch.Size] = []
    handle = head.register_forward_hook(lambda module, args, result: seen.append(result.shape))
    head(x)
    handle.remove()
    assert seen == [torch.Size([ROWS, CLASSES])]
    scripted = torch.jit.script(head)  # type: ignore[no-untyped-call]
    compiled = torch.compile(head, backend="eager", fullgraph=True)
    for run in (scripted, compiled):
        torch.testing.assert_close(run(x), F.linear(x, head.weight))
    head.weight = nn.Parameter(torch.ones(CLASSES, WIDTH))
    torch.testing.assert_close(head(x), x.sum(-1, keepdim=True).expand(ROWS, CLASSES))
