"""Checks that optimized models behave like the originals on a device: numbers, dropout, autocast, graphs and more.

Each row optimizes a model of examples/ without measurements (`tune=False`), so that every supported kernel runs, and
compares it with the original. An error is relative to the largest value of a tensor, against the original in float64,
and may be four times the original's own error, plus eight times the dtype's eps: fused layers sum in another order.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autofuse
from benchmarks.gpu.models import MEDIUM, TOY, TrainedModel
from benchmarks.gpu.store import Results, Row, Setting, Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_EPS_ALLOWED, _TIMES_ALLOWED = 8, 4
# Of the largest gradient of all parameters. The gradient of a key's bias is zero apart from rounding, and flash kernels
# round differently: they subtract the product of the rounded output.
_LEAST_SHARE = 1e-2


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each model and dtype, and one for each behaviour."""
    models = _models(setting)
    found = [
        Task(f"models/{name}/{dtype}", partial(numbers, trained, dtype, setting), 60)
        for name, trained in models.items() for dtype in (*DTYPES, "autocast bf16", "autocast fp16")
    ]  # fmt: skip
    found += [Task(f"models/{name}/steps", partial(steps, trained, setting), 60) for name, trained in models.items()]
    first, drawing = models["gpt2-124m"], models["bert-base"]
    checks: dict[str, Callable[[], Row]] = {
        "dropout is drawn again from the same seed": partial(dropout, drawing, setting),
        "activation checkpointing": partial(checkpointing, drawing, setting),
        "restore": partial(check_restore, first, setting),
        "copies": partial(copies, first, setting),
        "torch.compile": partial(compiled, first, setting),
        "moved from the CPU": partial(check_moved_models, first, setting),
    }
    if setting.device.type == "cuda":
        checks |= {
            "CUDA graph": partial(cuda_graph, first, setting),
            "another stream": partial(another_stream, first, setting),
        }
    return found + [Task(f"models/{name}", check, 60) for name, check in checks.items()]


def numbers(trained: TrainedModel, dtype: str, setting: Setting) -> Row:
    """The errors of the loss, the logits and all gradients, without dropout."""
    weights = torch.float32 if "autocast" in dtype else DTYPES[dtype]
    lower = DTYPES[dtype.removeprefix("autocast ")]
    model = _without_dropout(trained.model(setting.device, weights))
    batch = trained.data(setting.device)
    exact = _results(copy.deepcopy(model).double(), batch)
    autocast = torch.autocast(setting.device.type, lower, enabled="autocast" in dtype)
    with autocast:
        spelled = _results(model, batch)
        _optimize(model, batch[0])
        ours = _results(model, batch)
    # Where the original itself overflows in this dtype, there is nothing to compare with.
    finite = [name for name in exact if bool(spelled[name].isfinite().all())]
    # A gradient that is zero apart from rounding, as that of a key's bias, is compared with those of its neighbours.
    largest = max(float(t.abs().max()) for name, t in exact.items() if name != "logits")
    least = {name: 0.0 if name == "logits" else _LEAST_SHARE * largest for name in exact}
    allowed = {
        name: _TIMES_ALLOWED * _error(spelled[name], exact[name], least[name]) + _EPS_ALLOWED * torch.finfo(lower).eps
        for name in finite
    }
    errors = {name: _error(ours[name], exact[name], least[name]) for name in finite}
    wrong = [name for name in finite if not errors[name] <= allowed[name]]
    worst = max(errors, key=lambda name: errors[name] / allowed[name])
    return {
        "wrong": wrong, "worst": worst, "share": errors[worst] / allowed[worst], **_sites(model),
        "original_not_finite": [name for name in exact if name not in finite],
        "dtypes": "equal" if all(ours[n].dtype == spelled[n].dtype for n in exact) else "differ",
    }  # fmt: skip


def steps(trained: TrainedModel, setting: Setting) -> Row:
    """The losses of 10 steps with AdamW in float32, against the original in float64."""
    losses = {}
    for way in ("float64", "original", "optimized"):
        model = _without_dropout(trained.model(setting.device, torch.float32))
        model = model.double() if way == "float64" else model
        ids, targets = trained.data(setting.device)
        if way == "optimized":
            _optimize(model, ids)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses[way] = []
        for _ in range(10):
            loss = _loss(model(ids), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[way].append(loss.item())
    own, ours = (
        max(abs(a - b) / abs(b) for a, b in zip(losses[way], losses["float64"], strict=True))
        for way in ("original", "optimized")
    )
    allowed = _TIMES_ALLOWED * own + 1e-5
    return {"wrong": [] if ours <= allowed else ["losses"], "error": ours, "allowed": allowed, "losses": losses}


def dropout(trained: TrainedModel, setting: Setting) -> Row:
    """Equal results for equal seeds, other ones for other seeds, and random state after the call as a new seed."""
    model, ids = _optimized(trained, setting)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append((model(ids).detach(), torch.rand(4, device=setting.device)))
    (first, state), (again, state_again), (other, _) = outputs
    wrong = [] if torch.equal(first, again) and torch.equal(state, state_again) else ["not repeated"]
    wrong += ["not random"] if torch.equal(first, other) else []
    return {"wrong": wrong, **_sites(model)}


def checkpointing(trained: TrainedModel, setting: Setting) -> Row:
    """Gradients with recomputation equal those without, dropout included."""
    model, ids = _optimized(trained, setting)
    gradients = []
    for call in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
        torch.manual_seed(1)
        call(ids).float().square().mean().backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        model.zero_grad()
    wrong = [name for name, g in gradients[0].items() if _error(gradients[1][name], g.double()) > 1e-4]
    return {"wrong": wrong, **_sites(model)}


def check_restore(trained: TrainedModel, setting: Setting) -> Row:
    """After `restore` the outputs are the original's, bit for bit."""
    model, ids = trained.model(setting.device, torch.float32).eval(), trained.data(setting.device)[0]
    before = model(ids)
    _optimize(model, ids)
    autofuse.restore(model)
    return {"wrong": [] if torch.equal(model(ids), before) else ["outputs"]}


def copies(trained: TrainedModel, setting: Setting) -> Row:
    """A deep copy and an unpickled model compute the same."""
    model, ids = _optimized(trained, setting)
    expected = model.eval()(ids)
    others = {"copy": copy.deepcopy(model), "pickle": pickle.loads(pickle.dumps(model))}
    wrong = [name for name, other in others.items() if _error(other(ids), expected.double()) > 1e-4]
    return {"wrong": wrong, **_sites(model)}


def compiled(trained: TrainedModel, setting: Setting) -> Row:
    """torch.compile of the optimized model computes the same, without graph breaks."""
    model, ids = _optimized(trained, setting)
    torch.compiler.reset()
    expected = model(ids)
    compiled_model = torch.compile(model, fullgraph=True)
    wrong = [] if _error(compiled_model(ids), expected.double()) <= 1e-3 else ["outputs"]
    return {"wrong": wrong, **_sites(model)}


def check_moved_models(trained: TrainedModel, setting: Setting) -> Row:
    """A model that was optimized on the CPU computes the same after `.to(device)`, and there and back."""
    model = _without_dropout(trained.model(torch.device("cpu"), torch.float32))
    ids = trained.data(torch.device("cpu"))[0][:2]
    expected = model(ids)
    _optimize(model, ids)
    there = model.to(setting.device)(ids.to(setting.device))
    back = model.to("cpu")(ids)
    limits = {"there": (there.cpu(), 2e-3), "back": (back, 1e-4)}  # TF32 is not used, but products differ by order
    return {"wrong": [name for name, (out, most) in limits.items() if _error(out, expected.double()) > most]}


def cuda_graph(trained: TrainedModel, setting: Setting) -> Row:
    """A captured graph of the forward pass replays on other inputs as the model computes them."""
    model, ids = _optimized(trained, setting)
    model.eval()
    held = ids.clone()
    with torch.no_grad():
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(held)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(held)
        held.copy_(ids.flip(0))
        graph.replay()  # type: ignore[no-untyped-call]
        expected = model(ids.flip(0))
    return {"wrong": [] if _error(captured, expected.double()) <= 1e-4 else ["outputs"], **_sites(model)}


def another_stream(trained: TrainedModel, setting: Setting) -> Row:
    """Forward and backward on another stream compute the same while the default stream is busy."""
    model, ids = _optimized(trained, setting)
    expected = _gradients(model, ids)
    busy = torch.randn(4096, 4096, device=setting.device)
    torch.cuda.synchronize()
    for _ in range(20):
        busy = busy @ busy * 1e-4
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        found = _gradients(model, ids)
    torch.cuda.synchronize()
    wrong = [name for name, g in found.items() if _error(g, expected[name].double()) > 1e-4]
    return {"wrong": wrong, **_sites(model)}


def _models(setting: Setting) -> dict[str, TrainedModel]:
    return dict(TOY if setting.toy else MEDIUM)


def _optimized(trained: TrainedModel, setting: Setting) -> tuple[nn.Module, Tensor]:
    model, ids = trained.model(setting.device, torch.float32), trained.data(setting.device)[0]
    _optimize(model, ids)
    return model, ids


def _optimize(model: nn.Module, ids: Tensor) -> None:
    autofuse.optimize(model, (ids,), tune=False)


def _sites(model: nn.Module) -> Row:
    """Sites by status, and why sites were not fused or fell back."""
    sites = autofuse.report(model).sites
    counts = {status: sum(s.status == status for s in sites) for status in sorted({s.status for s in sites})}
    reasons = sorted({f"{s.rule} {s.module}: {s.reason}"[:300] for s in sites if s.status != "fused" and s.reason})
    return {"sites": counts, "reasons": reasons[:10]}


def _without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def _results(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """The logits and all gradients by name. Gradients are removed from the parameters."""
    ids, targets = batch
    logits = model(ids)
    _loss(logits, targets).backward()
    found = {"logits": logits.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad.detach().clone()
    model.zero_grad(set_to_none=True)
    return found


def _gradients(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    model(ids).float().square().mean().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float() if logits.dtype.itemsize < 4 else logits.flatten(0, 1),
                           targets.flatten())  # fmt: skip


def _error(found: Tensor, exact: Tensor, least: float = 1e-30) -> float:
    """The largest difference, relative to the largest value, but no less than `least`; NaN is never within a bound."""
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).abs().max() / exact.abs().max().clamp_min(max(least, 1e-30)))
