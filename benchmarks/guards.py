"""The cost of a call of an optimized module besides its fused kernels.

    python benchmarks/guards.py --output benchmarks/results/guards.json

The inputs are tiny, so that a call is nearly all overhead. There are two figures, in microseconds a call. "guards" is
the cost of the forward that autofuse installs over the body that it guards; the body does nothing, so that kernels do
not add noise. "over hand" is the cost of the optimized module over the same fused call written by hand with its modules
called normally: guards, and what `autofuse.ops` adds to torch's function, minus what is saved by reading parameters of
children without calling them. It can be negative. All variants run in alternating rounds, and a figure uses the best
round of each, as timeit does: other programs only add time, and rounds are short, so some are undisturbed even on a
busy machine.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofuse
from autofuse.fx.install.dispatch import entry_of
from autofuse.measure.environment import environment


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class FusedGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + self.eps) * self.weight + self.bias


class FusedNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (8,), self.weight, self.bias, self.eps)


class AddNorm(nn.Module):
    """A norm child whose parameters the fused code reads without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + y)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v


class FusedAttention(nn.Module):
    """Its result has the memory layout of the original's, as in the other classes."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask).contiguous()


class CausalAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones(16, 16, dtype=torch.bool)).view(1, 1, 16, 16))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        T = q.size(-2)
        return torch.softmax(scores.masked_fill(~self.bias[:, :, :T, :T], float("-inf")), dim=-1) @ v


class FusedCausalAttention(CausalAttention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).contiguous()


class MultiHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.heads = 2

    def split(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        return x.view(B, T, self.heads, C // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))


class FusedMultiHead(MultiHead):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Residual add and norm, and an MLP of three children."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(x)
        return x + self.mlp(self.norm(x))


class GatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def activate(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activate(self.gate(x)) * self.up(x))


class FusedGatedMlp(GatedMlp):
    def activate(self, x: Tensor) -> Tensor:
        return F.silu(x)


@dataclass
class Config:
    """A value that configurations hold."""

    heads: int = 2
    scale: float = 0.5
    causal: bool = False


LOW = float("-inf")
SCALES = {"half": 0.5, "none": 1.0}


def scaled_by(factor: float) -> Callable[[Tensor], Tensor]:
    """A function that closes over a number."""
    return lambda scores: scores * factor


class GlobalsAttention(nn.Module):
    """Reads a global number, and a number in a global dict."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) * SCALES["half"]).masked_fill(~mask, LOW)
        return torch.softmax(scores, dim=-1) @ v


class FusedGlobalsAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, scale=SCALES["half"]).contiguous()


class ConfiguredAttention(nn.Module):
    """Reads a configuration object."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) * self.config.scale
        if self.config.causal:
            scores = scores.masked_fill(torch.ones(q.size(-2), k.size(-2)).triu(1).bool(), LOW)
        return torch.softmax(scores, dim=-1) @ v


class FusedConfiguredAttention(ConfiguredAttention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = F.scaled_dot_product_attention(q, k, v, is_causal=self.config.causal, scale=self.config.scale)
        return made.contiguous()


class ClosureAttention(nn.Module):
    """Calls a function that closes over a number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_scores = scaled_by(0.5)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(self.scale_scores(q @ k.transpose(-2, -1)), dim=-1) @ v


class FusedClosureAttention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=0.5).contiguous()


@dataclass(frozen=True)
class Case:
    """A module as people write it, the same with hand-written fused calls, and the rules that must match."""

    name: str
    written: type[nn.Module]
    by_hand: type[nn.Module]
    rules: frozenset[str]
    sizes: tuple[tuple[int, ...], ...]
    masked: bool = False

    def inputs(self) -> tuple[Tensor, ...]:
        """Random operands of these sizes, and a mask that keeps every other key."""
        operands = tuple(torch.randn(*size) for size in self.sizes)
        return (*operands, torch.tensor([True, False]).expand(1, 1, 2, 2)) if self.masked else operands


_HEADS, _ROWS = ((1, 2, 2, 4),) * 3, ((1, 2, 8),)
CASES = (
    Case("gelu", Gelu, FusedGelu, frozenset({"AF301"}), _ROWS),
    Case("norm of its own", Norm, FusedNorm, frozenset({"AF201"}), _ROWS),
    Case("add, norm child", AddNorm, AddNorm, frozenset({"AF203"}), _ROWS * 2),
    Case("attention", Attention, FusedAttention, frozenset({"AF101"}), _HEADS),
    Case("attention, mask", Attention, FusedAttention, frozenset({"AF101"}), _HEADS, True),
    Case("attention, causal buffer", CausalAttention, FusedCausalAttention, frozenset({"AF101"}), _HEADS),
    Case("attention, globals", GlobalsAttention, FusedGlobalsAttention, frozenset({"AF101"}), _HEADS, True),
    Case("attention, configuration", ConfiguredAttention, FusedConfiguredAttention, frozenset({"AF101"}), _HEADS),
    Case("attention, closure", ClosureAttention, FusedClosureAttention, frozenset({"AF101"}), _HEADS),
    Case("multi-head attention", MultiHead, FusedMultiHead, frozenset({"AF101"}), _ROWS),
    Case("block", Block, Block, frozenset({"AF203", "AF304"}), _ROWS),
    Case("gated MLP", GatedMlp, FusedGatedMlp, frozenset({"AF303"}), _ROWS),
)


Call = Callable[[], object]


def best(calls: dict[str, Call], rounds: int, count: int) -> dict[str, float]:
    """The best round of each call, in microseconds a call. The order within a round is random."""
    times = dict.fromkeys(calls, float("inf"))
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(sorted(calls), len(calls)):
            call = calls[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            times[name] = min(times[name], (time.perf_counter() - start) / count * 1e6)
    return times


def guards_alone(module: nn.Module, inputs: tuple[object, ...]) -> tuple[Call, Call]:
    """The forward of `module` with a body that does nothing, and that body with the arguments from the guards."""
    entry = entry_of(module)
    assert entry is not None
    forward = entry.forward
    names = forward.__globals__
    received: list[tuple[object, ...]] = []
    bodies = [name for name in names if name.startswith("_run")]
    names.update(dict.fromkeys(bodies, lambda *args: received.append(args)))
    forward(module, *inputs)
    (arguments,) = received

    def nothing(*args: object) -> None:
        pass

    entry.forward = types.FunctionType(
        forward.__code__, {**names, **dict.fromkeys(bodies, nothing)}, None, forward.__defaults__
    )
    dispatcher = type(module).forward
    return lambda: dispatcher(module, *inputs), lambda: nothing(*arguments)


def measure(case: Case, rounds: int, count: int) -> dict[str, float]:
    """Measures one case.

    Raises:
        RuntimeError: if its module was not fused, so that there are no guards to measure.
    """
    inputs = case.inputs()
    torch.manual_seed(0)
    module = autofuse.optimize(case.written(), inputs, tune=False).eval()  # guards are measured, not gains
    found = {site.rule for site in autofuse.report(module).with_status("fused")}
    if not case.rules <= found:
        raise RuntimeError(f"{case.name!r} was not fused by {case.rules - found}:\n{autofuse.report(module)}")
    by_hand = case.by_hand().eval()
    by_hand.load_state_dict(module.state_dict(), strict=False)
    with torch.no_grad():
        torch.testing.assert_close(module(*inputs), by_hand(*inputs))
        calls: dict[str, Call] = {"optimized": lambda: module(*inputs), "by_hand": lambda: by_hand(*inputs)}
        times = best(calls, rounds, count)
        forward, nothing = guards_alone(copy.deepcopy(module), inputs)
        times_of_guards = best({"forward": forward, "nothing": nothing}, rounds, count)
    guards, over = times_of_guards["forward"] - times_of_guards["nothing"], times["optimized"] - times["by_hand"]
    return {"guards": guards, **times, "over_hand": over}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {case.name: measure(case, options.rounds, options.calls) for case in CASES}
    columns = ("guards", "optimized", "by_hand", "over_hand")
    print(f"{'microseconds a call':>28} " + " ".join(f"{column.replace('_', ' '):>10}" for column in columns))
    for name, row in results.items():
        print(f"{name:>28} " + " ".join(f"{row[column]:10.2f}" for column in columns))
    if options.output:
        data = {"version": 2, "benchmark": "guards", "microseconds_a_call": results}
        data["environment"] = environment(torch.device("cpu"))
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
