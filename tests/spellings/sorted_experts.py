"""Experts that take segments of sorted rows, in the spellings that people use, and look-alikes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.spellings.experts import EXPERTS, INNER, WIDTH, Dropping, Mlp, Routed


class CountsOfScatter(Routed):
    """DeepSeek-V2 and V3: counts by scatter, as a NumPy array; results are joined and put back."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        counts = chosen.new_zeros((chosen.shape[0], len(self.experts)))
        counts.scatter_(1, chosen, 1)
        tokens_per_expert = counts.sum(dim=0).cpu().numpy()
        order = chosen.view(-1).argsort()
        rows = x[order // chosen.shape[1]]
        outputs, start = [], 0
        for i, number in enumerate(tokens_per_expert):
            end = start + number
            if number == 0:
                continue
            outputs.append(self.experts[i](rows[start:end]))
            start = end
        results = torch.cat(outputs, dim=0) if len(outputs) else rows.new_empty(0)
        unsorted = torch.empty_like(results)
        unsorted[order] = results
        return (unsorted.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(dim=1).view(shape)


class EndsOfBincount(Routed):
    """DeepSeek-MoE in evaluation: sums of counts as a list, and each expert adds its rows."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        order = chosen.view(-1).argsort()
        ends = chosen.view(-1).bincount(minlength=EXPERTS).cumsum(0).tolist()
        token = order // self.k
        out = torch.zeros_like(x)
        for i, end in enumerate(ends):
            start = 0 if i == 0 else ends[i - 1]
            if start == end:
                continue
            rows = token[start:end]
            y = self.experts[i](x[rows]) * weights.view(-1, 1)[order[start:end]]
            out.scatter_add_(0, rows.view(-1, 1).repeat(1, WIDTH), y)
        return out.view(shape)


class ReducedRows(Routed):
    """DeepSeek-MoE's `moe_infer`: it writes in place, and has no gradients."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        order = chosen.view(-1).argsort()
        ends = chosen.view(-1).bincount(minlength=EXPERTS).cumsum(0).tolist()
        out = torch.zeros_like(x)
        for i, end in enumerate(ends):
            start = 0 if i == 0 else ends[i - 1]
            if start == end:
                continue
            rows = (order // self.k)[start:end]
            y = self.experts[i](x[rows])
            y.mul_(weights.view(-1, 1)[order[start:end]])
            out.scatter_reduce_(0, rows.view(-1, 1).repeat(1, WIDTH), y, reduce="sum")
        return out


class _Stacked(nn.Module):
    """A router, and the matrices of all experts in one tensor each."""

    def __init__(self, k: int = 2) -> None:
        super().__init__()
        self.k, self.gate = k, nn.Linear(WIDTH, EXPERTS, bias=False)
        self.w1, self.w3 = (nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) * 0.3) for _ in range(2))
        self.w2 = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.3)


class SplitByHistogram(_Stacked):
    """torchtitan: counts by torch.histc, torch.split, stacked matrices."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        scores, chosen = torch.topk(torch.sigmoid(self.gate(x)), k=self.k, dim=1)
        counts = torch.histc(chosen.view(-1).float(), bins=EXPERTS, min=0, max=EXPERTS)
        order = torch.argsort(chosen.view(-1), stable=True)
        token = (order // self.k).reshape(-1, 1).expand(-1, WIDTH)
        rows = torch.gather(x, 0, token) * scores.view(-1)[order].reshape(-1, 1)
        results = []
        for e, part in enumerate(torch.split(rows, split_size_or_sections=counts.int().tolist(), dim=0)):
            h = F.silu(torch.matmul(part, self.w1[e])) * torch.matmul(part, self.w3[e])
            results.append(torch.matmul(h, self.w2[e]))
        return torch.zeros_like(x).scatter_add(dim=0, index=token, src=torch.cat(results, dim=0)).reshape(shape)


class CountsOfItems(Routed):
    """FastMoE: one count after the other, and `index_copy_`."""

    def __init__(self, k: int = 2) -> None:
        super().__init__(k, Dropping)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, WIDTH)
        weights, chosen = self.route(x)
        _, order = torch.sort(chosen.flatten())
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        rows = x.index_select(0, order // self.k)
        outputs, base = [], 0
        for i in range(EXPERTS):
            number = counts[i].item()
            outputs.append(self.experts[i](rows[base : base + number]))
            base += number
        results = torch.cat(outputs, dim=0)
        unsorted = torch.empty_like(results).index_copy_(0, order, results)
        return torch.bmm(weights.unsqueeze(1), unsorted.view(-1, self.k, WIDTH)).reshape(shape)


class SegmentsOfOutput(_Stacked):
    """Each expert writes its segment of the result."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = torch.topk(self.gate(x).softmax(-1), self.k, dim=-1)
        order = chosen.flatten().argsort()
        ends = F.one_hot(chosen, EXPERTS).sum((0, 1)).cumsum(0).tolist()
        rows, start = x[order // self.k], 0
        out = torch.zeros(rows.shape[0], WIDTH, dtype=x.dtype)
        for e in range(EXPERTS):
            end = ends[e]
            if end > start:
                out[start:end] = F.gelu(rows[start:end] @ self.w1[e]) @ self.w2[e]
            start = end
        out = out * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add_(0, order // self.k, out).view(shape)


class ListsOfRows(Routed):
    """A list of rows and a list of results for all experts, in separate loops."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        rows = [torch.eq(chosen, i).nonzero(as_tuple=True)[0] for i in range(EXPERTS)]
        results = [self.experts[i](x[rows[i], :]) for i in range(EXPERTS)]
        out = x.new_zeros(x.shape)
        for i in range(EXPERTS):
            out[rows[i], :] = results[i]
        return (out * weight.view(-1, 1)).view(shape)


class JoinedRows(Routed):
    """The rows and the results of all experts are joined, and added once."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        rows, results = [], []
        for e in range(EXPERTS):
            token, nth = torch.where(chosen == e)
            rows.append(token)
            results.append(self.experts[e](x[token]) * weights[token, nth, None])
        return torch.zeros_like(x).index_add(0, torch.cat(rows), torch.cat(results)).view(shape)


class NamedExperts(nn.Module):
    """Switch Transformers: a dict of experts, and a one-hot mask with a capacity."""

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({f"expert_{i}": Mlp() for i in range(EXPERTS)})

    def forward(self, x: Tensor) -> Tensor:
        probabilities = F.softmax(self.gate(x), dim=-1)
        mask = F.one_hot(probabilities.argmax(dim=-1), num_classes=EXPERTS)
        mask = mask * (torch.cumsum(mask, dim=-2) <= 3)
        out = torch.zeros_like(x)
        for i in range(EXPERTS):
            token = mask[:, :, i].bool()
            out[token] = self.experts[f"expert_{i}"](x[token]).to(out.dtype)
        return probabilities.max(dim=-1).values.unsqueeze(-1) * out


class SequentialExperts(Routed):
    """Each expert is a Sequential, whose layers have numbers, too."""

    def __init__(self, k: int = 2) -> None:
        super().__init__(k)
        layers = [(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)) for _ in range(EXPERTS)]
        self.experts = nn.ModuleList([nn.Sequential(*each) for each in layers])

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, WIDTH)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, nth = torch.where(chosen == e)
            out.index_add_(0, token, expert(x[token]) * weights[token, nth, None])
        return out.view(shape)


FOUND = (
    SequentialExperts, CountsOfScatter, EndsOfBincount, SplitByHistogram, CountsOfItems, SegmentsOfOutput, ListsOfRows,
    JoinedRows, NamedExperts,
)  # fmt: skip


class _Segmented(Routed):
    """Segments of sorted rows, which look-alikes use in different ways."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
        order = chosen.flatten().argsort(stable=True)
        rows = x[order // self.k]
        results = self.results(rows, counts) * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, order // self.k, results)

    def results(self, rows: Tensor, counts: list[int]) -> Tensor:
        raise NotImplementedError


class ShiftedExperts(_Segmented):
    """Each expert gets the segment of its neighbour."""

    def results(self, rows: Tensor, counts: list[int]) -> Tensor:
        parts = rows.split(counts)
        return torch.cat([self.experts[(e + 1) % EXPERTS](part) for e, part in enumerate(parts)])


class OverlappingSegments(_Segmented):
    """Each expert also gets the rows of the experts before it."""

    def results(self, rows: Tensor, counts: list[int]) -> Tensor:
        out, end = torch.zeros_like(rows), 0
        for e in range(EXPERTS):
            end += counts[e]
            out[:end] = self.experts[e](rows[:end])
        return out


class CentredSegments(_Segmented):
    """The rows of an expert depend on each other."""

    def results(self, rows: Tensor, counts: list[int]) -> Tensor:
        return torch.cat([self.experts[e](p - p.mean(0)) for e, p in enumerate(rows.split(counts))])


class ReversedResults(_Segmented):
    """The results are joined in another order."""

    def results(self, rows: Tensor, counts: list[int]) -> Tensor:
        return torch.cat([self.experts[e](p) for e, p in enumerate(rows.split(counts))][::-1])


class EmptyGetsOne(_Segmented):
    """An expert without rows adds to the result of the first row."""

    def results(self, rows: Tensor, counts: list[int]) -> Tensor:
        parts, start, extra = [], 0, torch.zeros_like(rows[:1])
        for e in range(EXPERTS):
            if counts[e] == 0:
                extra = extra + self.experts[e](rows[:1])
                continue
            parts.append(self.experts[e](rows[start : start + counts[e]]))
            start += counts[e]
        return torch.cat(parts) + extra


class WrittenSegments(_Segmented):
    """A segment is written in place, so that the sorted rows change."""

    def results(self, rows: Tensor, counts: list[int]) -> Tensor:
        rows, start = rows * 1.0, 0
        for e in range(EXPERTS):
            rows[start : start + counts[e]].mul_(2.0)
            start += counts[e]
        return torch.cat([self.experts[e](p) for e, p in enumerate(rows.split(counts))])


class CountedRows(_Segmented):
    """The result is divided by the number of rows."""

    def results(self, rows: Tensor, counts: list[int]) -> Tensor:
        return torch.cat([self.experts[e](p) / max(counts[e], 1) for e, p in enumerate(rows.split(counts))])


class SegmentsOfOtherRows(_Segmented):
    """The segments are those of the tokens, not of the sorted rows."""

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        counts = torch.bincount(chosen, minlength=EXPERTS).tolist()
        doubled, start, parts = torch.cat([x, x]), 0, []
        for e in range(EXPERTS):
            parts.append(self.experts[e](doubled[start : start + counts[e]]))
            start += counts[e]
        return torch.cat(parts) * weight.unsqueeze(-1)


LOOK_ALIKES = (
    ShiftedExperts, OverlappingSegments, CentredSegments, ReversedResults, EmptyGetsOne, WrittenSegments, CountedRows,
    SegmentsOfOtherRows,
)  # fmt: skip
