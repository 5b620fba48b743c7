"""More loops over experts, and look-alikes: counts, capacities, other ways to add, and experts without rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.spellings.experts import CHOICES, WIDTH, Mlp, Routed


class DeepSeekV3(Routed):
    """DeepSeek-V3's inference code: a list of counts, then `where`."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.size()
        x = x.view(-1, WIDTH)
        weights, indices = self.route(x)
        y = torch.zeros_like(x)
        counts = torch.bincount(indices.flatten(), minlength=self.num_experts).tolist()
        for i in range(self.num_experts):
            if counts[i] == 0:
                continue
            expert = self.experts[i]
            chosen, top = torch.where(indices == i)
            y[chosen] += expert(x[chosen]) * weights[chosen, top, None]
        return y.view(shape)


class UniqueLoop(Routed):
    """The experts that occur, one number in a tensor each."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e in torch.unique(chosen):
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return out.view(shape)


class UniqueTolist(Routed):
    """The experts that occur, as a list of numbers."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e in chosen.unique().tolist():
            mask = chosen == e
            token, nth = mask.nonzero(as_tuple=True)
            out[token] += weights[token, nth].unsqueeze(-1) * self.experts[e](x[token])
        return out.view(shape)


class CapacityLoop(Routed):
    """The first tokens of each expert, up to its capacity."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        capacity = int(1.0 * x.shape[0] * self.k / self.num_experts)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            token, nth = token[:capacity], nth[:capacity]
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


class CountsContinue(Routed):
    """Counts from a one-hot mask."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, self.num_experts)
        counts = mask.sum((0, 1)).tolist()
        for e, n in enumerate(counts):
            if n == 0:
                continue
            token, nth = torch.where(mask[..., e])
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return out.view(shape)


class OutOfPlaceIndexAdd(Routed):
    """Each turn makes a new result."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            out = out.index_add(0, token, expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


class ScatterAdd(Routed):
    """The index is repeated for each column."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            y = expert(x[token]) * weights[token, nth, None]
            out.scatter_add_(0, token.unsqueeze(-1).expand_as(y), y)
        return out.view(shape)


class IndexSelect(Routed):
    """`index_select` in place of an index."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            y = expert(x.index_select(0, token)) * weights[token, nth, None]
            out.index_add_(0, token, y)
        return out.view(shape)


class IndexPut(Routed):
    """`index_put_` that accumulates."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            out.index_put_((token,), expert(x[token]) * weights[token, nth, None], accumulate=True)
        return out.view(shape)


class Shared(Routed):
    """An expert for all tokens, added at the end."""

    def __init__(self, k: int = CHOICES) -> None:
        super().__init__(k)
        self.shared = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            if token.numel() > 0:
                out[token] += expert(x[token]) * weights[token, nth, None]
        return (out + self.shared(x)).view(shape)


class SwitchMask(Routed):
    """Switch Transformers: one expert for each token, a column of the mask."""

    def __init__(self, k: int = 1) -> None:
        super().__init__(k)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        probs = F.softmax(self.gate(x), dim=-1)
        gate, choice = probs.max(dim=-1, keepdim=True)
        mask = F.one_hot(choice.squeeze(-1), self.num_experts)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            tok = mask.bool()[:, e]
            out[tok] = expert(x[tok]).to(out.dtype)
        return (out * gate).view(shape)


class FillMaskedByWeights(Routed):
    """LitGPT: the masks of all experts at once."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        x = x.view(-1, C)
        router = self.gate(x)
        probs, indices = torch.topk(router, self.k)
        probs = probs.softmax(dim=1, dtype=torch.float).to(dtype=x.dtype)
        masks = indices.unsqueeze(-1) == torch.arange(self.num_experts, device=x.device)
        masks = masks.permute(2, 0, 1)
        y = torch.zeros_like(x)
        for mask, expert in zip(masks, self.experts, strict=True):
            token_idx, expert_idx = torch.where(mask)
            y[token_idx] += probs[token_idx, expert_idx, None] * expert(x[token_idx])
        return y.view(B, T, C)


FOUND = (
    DeepSeekV3, UniqueLoop, UniqueTolist, CapacityLoop, CountsContinue, OutOfPlaceIndexAdd, ScatterAdd, IndexSelect,
    IndexPut, Shared, SwitchMask, FillMaskedByWeights,
)  # fmt: skip


# What looks like a loop over experts and is none.


class TestedAlone(Routed):
    """No loop: an expert that nobody chose changes the result."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        if (chosen == 2).any():
            return x * 2
        return x + weights.sum()


class CountedAlone(Routed):
    """No loop: a count changes the result."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts).tolist()
        if counts[0] == 0:
            return x * 2
        return x + weights.sum()


class CountsOfAnother(Routed):
    """The counts of the first choice decide about all."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        counts = torch.bincount((-x).topk(4, dim=-1)[1][:, 0] % 4, minlength=4).tolist()
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            if counts[e] == 0:
                continue
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return out.view(shape)


class CountsOfOtherIndex(Routed):
    """The counts of another choice."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        _, other = (-self.gate(x)).topk(1, dim=-1)
        counts = torch.bincount(other.flatten(), minlength=self.num_experts).tolist()
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            if counts[e] == 0:
                continue
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return out.view(shape)


class CountsOfTheNext(Routed):
    """The count of the next expert."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts).tolist()
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            if counts[(e + 1) % self.num_experts] == 0:
                continue
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return out.view(shape)


class CountsAboveTwo(Routed):
    """A single token is skipped."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts).tolist()
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            if counts[e] < 2:
                continue
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return out.view(shape)


class CountsDivide(Routed):
    """The count divides the result."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts).tolist()
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            if counts[e] == 0:
                continue
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None] / counts[e])
        return out.view(shape)


class SkipsNonempty(Routed):
    """Skips the experts that have rows."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            token, nth = torch.where(chosen == e)
            if token.numel() > 0:
                continue
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return (out + x).view(shape)


class UniqueOfAnother(Routed):
    """The experts of another choice."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        _, other = (-self.gate(x)).topk(1, dim=-1)
        out = torch.zeros_like(x)
        for e in torch.unique(other):
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return out.view(shape)


class UniqueCounts(Routed):
    """The position among the experts that occur is a factor."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for j, e in enumerate(torch.unique(chosen)):
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None] * (j + 1))
        return out.view(shape)


class UniqueLength(Routed):
    """How many experts occur is a factor."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        _, chosen = self.route(x)
        u = torch.unique(chosen)
        return (x * u.numel()).view(shape)


class CapacityOfOne(Routed):
    """Only one index is cut."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            few = token[:3]
            out.index_add_(0, few, expert(x[few]) * weights[token, nth, None].mean())
        return out.view(shape)


class CapacityGrows(Routed):
    """Each expert has another capacity."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            token, nth = token[: e + 1], nth[: e + 1]
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


class TakesTheLast(Routed):
    """All tokens but the first."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            token, nth = token[1:], nth[1:]
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


class SetNotAdded(Routed):
    """`index_put_` that does not accumulate."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            out.index_put_((token,), expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


class ScattersByWidth(Routed):
    """Each column has its own index."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            y = expert(x[token]) * weights[token, nth, None]
            out.scatter_add_(0, (token[:, None] + torch.arange(WIDTH)) % x.shape[0], y)
        return out.view(shape)


class MaskOfTokensLast(Routed):
    """Set, where a token may have two experts: the last wins."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        _, chosen = self.route(x)
        mask = F.one_hot(chosen, self.num_experts).sum(1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            tok = mask.bool()[:, e]
            out[tok] = expert(x[tok])
        return out.view(shape)


class ReadsBetween(Routed):
    """Each turn reads the result."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            out = out.index_add(0, token, expert(x[token] + out[token]) * weights[token, nth, None])
        return out.view(shape)


class HalvesBetween(Routed):
    """Each turn halves the result."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            out = out.index_add(0, token, expert(x[token]) * weights[token, nth, None]) * 0.5
        return out.view(shape)


class CountsOfThePrevious(Routed):
    """The count of the previous expert."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts).tolist()
        out = torch.zeros_like(x)
        for e in range(self.num_experts):
            if counts[e - 1] == 0:
                continue
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, self.experts[e](x[token]) * weights[token, nth, None])
        return out.view(shape)


class EmptyAddsOne(Routed):
    """An expert without rows changes the result."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            if token.numel() == 0:
                out = out + 1
                continue
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


class EmptyCountsAddsOne(Routed):
    """An expert without rows changes the result, and counts say so."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        counts = torch.bincount(chosen.flatten(), minlength=self.num_experts).tolist()
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            if counts[e] == 0:
                out += 1
                continue
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


class EmptyCallsAll(Routed):
    """An expert without rows runs on all tokens, so that it gets gradients."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            mask = chosen == e
            if mask.any():
                token, nth = torch.where(mask)
                out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
            else:
                out += 0.0 * expert(x[:1]).sum()
        return out.view(shape)


LOOK_ALIKES = (
    TestedAlone, CountedAlone, CountsOfAnother, CountsOfOtherIndex, CountsOfTheNext, CountsAboveTwo, CountsDivide,
    SkipsNonempty, UniqueOfAnother, UniqueCounts, UniqueLength, CapacityOfOne, CapacityGrows, TakesTheLast,
    SetNotAdded, ScattersByWidth, MaskOfTokensLast, ReadsBetween, HalvesBetween, CountsOfThePrevious, EmptyAddsOne,
    EmptyCountsAddsOne, EmptyCallsAll,
)  # fmt: skip
