"""A realistic program of another kind: an agent that learns from its own draws, with a memory and adapters.

It keeps keys and values of the past in a dict, draws actions with its own generator, stores episodes in a list, adds a
gradient penalty, copies its model as a target, swaps and merges adapters, and changes its configuration between rounds.
"""

from __future__ import annotations

import copy
import os
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROUNDS, WIDTH, ACTIONS = 5, 16, 6
SETTINGS = types.SimpleNamespace(adapter="a", window=6, penalty=0.0, gate="silu", entropy=0.01)
EPISODES: list[dict[str, Any]] = []
SUMMARY: dict[str, float] = {}


class Owner:
    """What layers refer to weakly."""

    temperature = 1.0


OWNER = Owner()


def schedule() -> Iterator[float]:
    """The discount of each round."""
    discount = 0.9
    while True:
        yield discount
        discount = 0.5 + discount / 2


class Norm(nn.Module):
    """RMS norm by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Adapted(nn.Linear):
    """A linear layer with adapters, of which the settings name one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.adapters = nn.ParameterDict({name: nn.Parameter(torch.zeros(outputs, inputs)) for name in "ab"})
        self.merged = False

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.merged else y + x @ self.adapters[SETTINGS.adapter].T

    @torch.no_grad()
    def merge(self) -> None:
        """Adds the adapter to the weight."""
        self.weight += self.adapters[SETTINGS.adapter]
        self.merged = True


class Memory(nn.Module):
    """Attention to what the agent saw before."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.owner = number, weakref.ref(OWNER)
        self.q, self.k, self.v, self.o = (Adapted(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, past: dict[str, list[Tensor]]) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        kept = past.setdefault(f"layer {self.number}", [])
        if kept:
            k, v = torch.cat([kept[0], k], 2), torch.cat([kept[1], v], 2)
        k, v = k[:, :, -SETTINGS.window :], v[:, :, -SETTINGS.window :]
        kept[:] = [k, v]
        owner = self.owner()
        temperature = 1.0 if owner is None else owner.temperature
        weights = torch.softmax(q @ k.transpose(-2, -1) / (8**0.5 * temperature), -1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Memory, then a gated layer."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.memory = Norm(), Norm(), Memory(number)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor, past: dict[str, list[Tensor]]) -> Tensor:
        x = x + self.memory(self.norm1(x), past)
        h = self.norm2(x)
        g = self.gate(h)
        g = g * torch.sigmoid(g) if SETTINGS.gate == "silu" else 0.5 * g * (1 + torch.erf(g / 2**0.5))
        return x + self.down(g * self.up(h))


class Agent(nn.Module):
    """The policy and the value."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(ACTIONS + 2, WIDTH)
        self.layers = nn.ModuleList(Layer(i) for i in range(2))
        self.norm, self.policy, self.value = Norm(), nn.Linear(WIDTH, ACTIONS), nn.Linear(WIDTH, 1)
        self.calls = 0

    def forward(self, seen: Tensor, past: dict[str, list[Tensor]]) -> tuple[Tensor, Tensor]:
        self.calls += 1
        x = self.embed(seen)
        for layer in self.layers:
            x = layer(x, past)
        x = self.norm(x)
        return torch.log_softmax(self.policy(x), -1), self.value(x).squeeze(-1)


def episode(agent: nn.Module, rng: torch.Generator, length: int) -> dict[str, Any]:
    """Plays an episode of two games."""
    past: dict[str, list[Tensor]] = {}
    seen = torch.randn(2, 1, ACTIONS + 2, generator=rng, dtype=torch.float64)
    kept: dict[str, Any] = {"picked": [], "values": [], "rewards": [], "entropy": []}
    for _ in range(length):
        logs, value = agent(seen, past)
        action = torch.multinomial(logs[:, -1].exp().detach(), 1, generator=rng)
        kept["picked"].append(logs[:, -1].gather(1, action).squeeze(1))
        kept["values"].append(value[:, -1])
        kept["entropy"].append(-(logs.exp() * logs).sum(-1).mean())
        kept["rewards"].append((action.squeeze(1) == seen[:, -1, :ACTIONS].argmax(1)).double())
        seen = torch.randn(2, 1, ACTIONS + 2, generator=rng, dtype=torch.float64)
    kept["kept"] = sorted((name, tuple(t.shape[2] for t in tensors)) for name, tensors in past.items())
    return kept


def loss_of(played: dict[str, Any], discount: float, seen: Tensor, agent: nn.Module) -> Tensor:
    """The loss of an episode, with a gradient penalty if the settings ask for one."""
    total, loss = torch.zeros(2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for picked, value, reward in reversed(
        list(zip(played["picked"], played["values"], played["rewards"], strict=True))
    ):
        total = reward + discount * total
        loss = loss - ((total - value.detach()) * picked).mean() + F.mse_loss(value, total)
    loss = loss - SETTINGS.entropy * sum(played["entropy"])
    if SETTINGS.penalty:
        seen = seen.requires_grad_()
        (gradient,) = torch.autograd.grad(agent(seen, {})[1].sum(), seen, create_graph=True)
        loss = loss + SETTINGS.penalty * gradient.pow(2).mean()
    return loss


def configure(number: int, agent: Agent) -> None:
    """Makes the changes for a round."""
    SETTINGS.adapter = "ab"[number % 2]
    SETTINGS.window = (6, 3, 8, 2, 5)[number]
    SETTINGS.penalty = 0.1 if number in (1, 3) else 0.0
    SETTINGS.gate = "gelu" if number >= 2 else "silu"
    OWNER.temperature = 1.0 + 0.2 * number
    if number == 3:
        for module in agent.modules():
            if isinstance(module, Adapted):
                module.merge()
    if number == 4:
        Owner.temperature = 3.0
        del OWNER.temperature


def run(prepare: Callable[[nn.Module, tuple[Any, ...]], nn.Module], steps: int = 40) -> dict[str, Any]:
    """Runs the program with so many steps for each round, and returns its visible state."""
    torch.manual_seed(0)
    rng, discounts = torch.Generator().manual_seed(5), schedule()
    agent = Agent().double()
    prepare(agent, (torch.zeros(2, 1, ACTIONS + 2, dtype=torch.float64), {}))
    target = copy.deepcopy(agent)
    optimizer = torch.optim.SGD(agent.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for number in range(ROUNDS):
        configure(number, agent)
        discount = next(discounts)
        for step in range(steps):
            played = episode(agent, rng, 2 + step % 3)
            seen = torch.randn(2, 3, ACTIONS + 2, generator=rng, dtype=torch.float64)
            loss = loss_of(played, discount, seen, agent)
            optimizer.zero_grad(set_to_none=bool(step % 2))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            EPISODES.append({"round": number, "kept": played["kept"], "reward": float(sum(played["rewards"]).sum())})
        with torch.no_grad():
            SUMMARY[f"round {number}"] = float(target(seen.detach(), {})[1].mean())
        target.load_state_dict(agent.state_dict())
        os.environ["LONG_AGENT_ROUND"] = str(number)
    del os.environ["LONG_AGENT_ROUND"]
    kept = {"model": agent.state_dict(), "target": target.state_dict(), "calls": agent.calls}
    return {"losses": losses, "episodes": EPISODES, "summary": SUMMARY, "drawn": torch.rand(2, generator=rng), **kept}
