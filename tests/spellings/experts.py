"""Loops over experts, and look-alikes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXPERTS, WIDTH, INNER, CHOICES = 4, 12, 20, 2


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
        self.w3, self.act_fn = nn.Linear(WIDTH, INNER, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Any:
        return self.w2(self.act_fn(self.w1(x)) * self.w3(x))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, WIDTH), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class Routed(nn.Module):
    """A router and a list of experts."""

    def __init__(self, k: int = CHOICES, expert: type[nn.Module] = Mlp) -> None:
        super().__init__()
        self.k, self.num_experts = k, EXPERTS
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList([expert() for _ in range(EXPERTS)])

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = torch.topk(F.softmax(self.gate(x), dim=-1), self.k, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), chosen


class MistralReference(Routed):
    """mistral-inference: enumerate, where, `+=`."""

    def forward(self, inputs: Tensor) -> Tensor:
        squashed = inputs.view(-1, inputs.shape[-1])
        logits = self.gate(squashed)
        weights, selected = torch.topk(logits, self.k)
        weights = F.softmax(weights, dim=1, dtype=torch.float).type_as(inputs)
        results = torch.zeros_like(squashed)
        for i, expert in enumerate(self.experts):
            batch_idx, nth_expert = torch.where(selected == i)
            results[batch_idx] += weights[batch_idx, nth_expert, None] * expert(squashed[batch_idx])
        return results.view_as(inputs)


class OldMixtral(Routed):
    """transformers up to 4.4x: range, one-hot, index_add_."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, hidden_dim)
        routing_weights = F.softmax(self.gate(hidden_states), dim=1, dtype=torch.float)
        routing_weights, selected = torch.topk(routing_weights, self.k, dim=-1)
        routing_weights = (routing_weights / routing_weights.sum(dim=-1, keepdim=True)).to(hidden_states.dtype)
        final = torch.zeros(
            (batch_size * sequence_length, hidden_dim), dtype=hidden_states.dtype, device=hidden_states.device
        )
        expert_mask = torch.nn.functional.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        for expert_idx in range(self.num_experts):
            expert_layer = self.experts[expert_idx]
            idx, top_x = torch.where(expert_mask[expert_idx])
            current_state = hidden_states[None, top_x].reshape(-1, hidden_dim)
            current = expert_layer(current_state) * routing_weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(hidden_states.dtype))
        return final.reshape(batch_size, sequence_length, hidden_dim)


class OlderMixtral(OldMixtral):
    """The same, skipping experts without tokens."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, hidden_dim)
        routing_weights, selected = self.route(hidden_states)
        final = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        for expert_idx in range(self.num_experts):
            idx, top_x = torch.where(expert_mask[expert_idx])
            if top_x.shape[0] == 0:
                continue
            current = self.experts[expert_idx](hidden_states[top_x]) * routing_weights[top_x, idx, None]
            final.index_add_(0, top_x, current)
        return final.reshape(batch_size, sequence_length, hidden_dim)


class HitMixtral(Routed):
    """transformers 4.5x: the experts that are hit, one number in a tensor each."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, hidden_dim)
        routing_weights, selected = self.route(hidden_states)
        final = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert_idx in expert_hit:
            expert_layer = self.experts[expert_idx]
            idx, top_x = torch.where(expert_mask[expert_idx].squeeze(0))
            current_state = hidden_states[None, top_x].reshape(-1, hidden_dim)
            current = expert_layer(current_state) * routing_weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(hidden_states.dtype))
        return final.reshape(batch_size, sequence_length, hidden_dim)


class MakeMoe(Routed):
    """makeMoE, nanoMoE: a mask of tokens, `any`."""

    def forward(self, x: Tensor) -> Tensor:
        gating_output, indices = self.route(x)
        full = torch.zeros_like(self.gate(x)).scatter(-1, indices, gating_output)
        final_output = torch.zeros_like(x)
        flat_x = x.view(-1, x.size(-1))
        flat_gating = full.view(-1, full.size(-1))
        for i, expert in enumerate(self.experts):
            expert_mask = (indices == i).any(dim=-1)
            flat_mask = expert_mask.view(-1)
            if flat_mask.any():
                expert_input = flat_x[flat_mask]
                expert_output = expert(expert_input)
                gating_scores = flat_gating[flat_mask, i].unsqueeze(1)
                weighted_output = expert_output * gating_scores
                final_output[expert_mask] += weighted_output.squeeze(1)
        return final_output


class NonzeroTuple(Routed):
    """nonzero(as_tuple=True), numel, a product on the left."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e in range(len(self.experts)):
            token, nth = (chosen == e).nonzero(as_tuple=True)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, weights[token, nth].unsqueeze(-1) * self.experts[e](x[token]))
        return out.view(shape)


class DeepSeek(Routed):
    """DeepSeek in training: each token k times, put in its place."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        flat_topk_idx = chosen.view(-1)
        repeated = x.repeat_interleave(self.k, dim=0)
        y = torch.empty_like(repeated)
        for i, expert in enumerate(self.experts):
            y[flat_topk_idx == i] = expert(repeated[flat_topk_idx == i])
        y = (y.view(*weights.shape, -1) * weights.unsqueeze(-1)).sum(dim=1)
        return y.view(shape)


class Stacked(nn.Module):
    """transformers 5: all experts' weights in one tensor."""

    def __init__(self, k: int = CHOICES) -> None:
        super().__init__()
        self.k, self.num_experts = k, EXPERTS
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / math.sqrt(WIDTH))
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / math.sqrt(INNER))
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = torch.topk(F.softmax(self.gate(x), dim=-1), self.k, dim=-1)
        return self.mix_experts(x, chosen, weights).view(shape)

    def mix_experts(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        final = torch.zeros_like(hidden_states)
        with torch.no_grad():
            expert_mask = torch.nn.functional.one_hot(top_k_index, num_classes=self.num_experts + 1)
            expert_mask = expert_mask.permute(2, 1, 0)
            expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert_idx in expert_hit:
            expert_idx = expert_idx[0]
            if expert_idx == self.num_experts:
                continue
            top_k_pos, token_idx = torch.where(expert_mask[expert_idx])
            current_state = hidden_states[token_idx]
            gate, up = nn.functional.linear(current_state, self.gate_up_proj[expert_idx]).chunk(2, dim=-1)
            current = self.act_fn(gate) * up
            current = nn.functional.linear(current, self.down_proj[expert_idx])
            current = current * top_k_weights[token_idx, top_k_pos, None]
            final.index_add_(0, token_idx, current.to(final.dtype))
        return final


class GptOss(Stacked):
    """gpt-oss: biases, interleaved halves, a clamp."""

    def __init__(self, k: int = CHOICES) -> None:
        super().__init__(k)
        self.gate_up_proj = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * INNER) / math.sqrt(WIDTH))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(EXPERTS, 2 * INNER) / 2)
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) / math.sqrt(INNER))
        self.down_proj_bias = nn.Parameter(torch.randn(EXPERTS, WIDTH) / 2)
        self.alpha, self.limit = 1.702, 1.0

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
        gate = gate.clamp(min=None, max=self.limit)
        up = up.clamp(min=-self.limit, max=self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))

    def mix_experts(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        next_states = torch.zeros_like(hidden_states)
        with torch.no_grad():
            expert_mask = torch.nn.functional.one_hot(top_k_index, num_classes=self.num_experts).permute(2, 1, 0)
            expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert_idx in expert_hit:
            expert_idx = expert_idx[0]
            top_k_pos, token_idx = torch.where(expert_mask[expert_idx])
            current_state = hidden_states[token_idx]
            gate_up = current_state @ self.gate_up_proj[expert_idx] + self.gate_up_proj_bias[expert_idx]
            out = self._apply_gate(gate_up) @ self.down_proj[expert_idx] + self.down_proj_bias[expert_idx]
            weighted = out * top_k_weights[token_idx, top_k_pos, None]
            next_states.index_add_(0, token_idx, weighted.to(hidden_states.dtype))
        return next_states


class StackedRange(Stacked):
    """A range, a mask of tokens, a transposed matrix."""

    def mix_experts(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            token, nth = torch.where(chosen == e)
            up, gate = (x[token] @ self.gate_up_proj[e].t()).split(INNER, dim=-1)
            out.index_add_(0, token, (F.gelu(gate) * up @ self.down_proj[e].T) * weights[token, nth][:, None])
        return out


class Capacity(Routed):
    """Entries beyond an expert's capacity go to no expert."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        taken = F.one_hot(chosen.view(-1), self.num_experts).cumsum(0).gather(1, chosen.view(-1, 1)).view_as(chosen)
        chosen = chosen.masked_fill(taken > 5, self.num_experts)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


class MaskOfTokens(Routed):
    """A mask of tokens; the weights of other experts are multiplied by zero."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, WIDTH)
        weights, chosen = self.route(flat)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            taken = (chosen == i).any(-1)
            if taken.any():
                share = (weights * (chosen == i).float()).sum(-1)[taken].unsqueeze(-1)
                out[taken] += expert(flat[taken]) * share
        return out.view_as(x)


class EachChoice(Routed):
    """A loop over the choices, and one over the experts in it."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, WIDTH)
        weights, chosen = self.route(flat)
        out = torch.zeros_like(flat)
        for k in range(self.k):
            for i in range(self.num_experts):
                taken = chosen[:, k] == i
                if taken.sum() > 0:
                    out[taken] += weights[taken, k : k + 1] * self.experts[i](flat[taken])
        return out.view_as(x)


class EachChoiceOfIts(Routed):
    """The choice as one column."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, WIDTH)
        weights, chosen = self.route(flat)
        out = torch.zeros_like(flat)
        for k in range(self.k):
            expert_index, weight = chosen[:, k], weights[:, k]
            for i, expert in enumerate(self.experts):
                rows = torch.where(expert_index == i)[0]
                out.index_add_(0, rows, expert(flat[rows]) * weight[rows].unsqueeze(1))
        return out.view_as(x)


class ScoresOfTheExpert(Routed):
    """The column of the expert in the scores, then its tokens."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, WIDTH)
        scores = F.softmax(self.gate(flat), dim=-1)
        _, chosen = scores.topk(self.k, dim=-1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            taken = (chosen == i).any(dim=-1)
            out[taken] += scores[:, i][taken].unsqueeze(1) * expert(flat[taken])
        return out.view_as(x)


class HalvedBetweenChoices(Routed):
    """What the first choices added is halved: one loop for each choice."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for k in range(self.k):
            for i in range(self.num_experts):
                taken = chosen[:, k] == i
                out[taken] += weights[taken, k : k + 1] * self.experts[i](x[taken])
            out.mul_(0.5)
        return out.view(shape)


class ChainedChoices(Routed):
    """The second choice sees what the first one added."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = x.clone()
        for k in range(self.k):
            seen = out.clone()
            for i in range(self.num_experts):
                taken = chosen[:, k] == i
                out[taken] += weights[taken, k : k + 1] * self.experts[i](seen[taken])
        return out.view(shape)


FOUND = (
    MistralReference, OldMixtral, OlderMixtral, HitMixtral, MakeMoe, NonzeroTuple, DeepSeek, Stacked, GptOss,
    StackedRange, Capacity, MaskOfTokens, EachChoice, EachChoiceOfIts, ScoresOfTheExpert, HalvedBetweenChoices,
    ChainedChoices,
)  # fmt: skip


# What looks like a loop over experts and is none.


class LastWins(Routed):
    """`=` and not `+=`: the last of a token's experts is all that counts."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            out[token] = expert(x[token]) * weights[token, nth, None]
        return out


class ShareOfAllTokens(Routed):
    """The weight of a token depends on the tokens before it."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            taken = (chosen == i).any(-1)
            share = (weights * (chosen == i).float()).cumsum(0).sum(-1)[taken].unsqueeze(-1)
            out[taken] += expert(x[taken]) * share
        return out


class ShareOfTheNext(Routed):
    """The weight comes from the column of the next expert."""

    def forward(self, x: Tensor) -> Tensor:
        scores = F.softmax(self.gate(x), dim=-1)
        _, chosen = scores.topk(self.k, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            taken = (chosen == i).any(dim=-1)
            out[taken] += scores[:, (i + 1) % EXPERTS][taken].unsqueeze(1) * expert(x[taken])
        return out


class AcrossRows(Routed):
    """The mean over an expert's tokens."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            given = x[token]
            out.index_add_(0, token, expert(given - given.mean(dim=0)) * weights[token, nth, None])
        return out


class Chained(Routed):
    """Each expert sees what those before it have added."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = x.clone()
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            out.index_add_(0, token, expert(out[token]) * weights[token, nth, None])
        return out


class Decaying(Routed):
    """A factor that each turn changes."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out, scale = torch.zeros_like(x), 1.0
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None] * scale)
            scale *= 0.5
        return out


class DecayingTensor(Routed):
    """A factor of the weights that each turn changes."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
            weights = weights * 0.5
        return out


class DecayingInPlace(Routed):
    """Each turn halves the weights in place, and reads them."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out, weights = torch.zeros_like(x), weights.clone()
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            out.index_add_(0, token, expert(x[token]) * weights.mul_(0.5)[token, nth, None].clone())
        return out


class Halved(Routed):
    """What was added is halved after each turn."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
            out.mul_(0.5)
        return out


class Noisy(Routed):
    """Jitter on what each expert is given."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            given = x[token]
            given = given * torch.empty_like(given).uniform_(0.9, 1.1)
            out.index_add_(0, token, expert(given) * weights[token, nth, None])
        return out


class OneUnlike(Routed):
    """The last expert is another formula."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            made = expert(x[token]) if i < EXPERTS - 1 else x[token]
            out.index_add_(0, token, made * weights[token, nth, None])
        return out


class Repeated(Routed):
    """Indices that may be equal: `+=` adds one of them."""

    def forward(self, x: Tensor) -> Tensor:
        weights, _ = self.route(x)
        chosen = (x[:, :CHOICES] > 0).long()
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            out[token] += expert(x[token]) * weights[token, nth, None]
        return out


class Counted(Routed):
    """How many tokens an expert has is used."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None] / (1 + token.shape[0]))
        return out


class Stops(Routed):
    """Two experts at most."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        out, done = torch.zeros_like(x), 0
        for i, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == i)
            if token.numel() == 0:
                continue
            done += 1
            if done > 2:
                break
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
        return out


LOOK_ALIKES = (
    ShareOfAllTokens, ShareOfTheNext, LastWins, AcrossRows, Chained, Decaying, DecayingTensor,
    DecayingInPlace, Halved, Noisy, OneUnlike, Repeated, Counted, Stops,
)  # fmt: skip
