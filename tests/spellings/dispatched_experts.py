"""Experts to which one-hot tensors of tokens, experts and places send the tokens, and look-alikes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.spellings.experts import EXPERTS, INNER, WIDTH


class _Stacked(nn.Module):
    """A router, and the matrices of all experts in one tensor each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) * 0.3)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) * 0.3)

    def experts(self, x: Tensor) -> Tensor:
        return torch.bmm(F.gelu(torch.bmm(x, self.up)), self.down)


class SwitchEinsum(_Stacked):
    """Switch: one expert for each token, a capacity, and places by cumsum."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        top, chosen = F.softmax(self.gate(tokens), dim=-1).max(dim=-1)
        mask = F.one_hot(chosen, EXPERTS)
        capacity = math.ceil(tokens.shape[0] / EXPERTS * 1.25)
        place = torch.cumsum(mask, dim=0) * mask - 1
        keep = (place < capacity) & (place >= 0)
        dispatch = keep.unsqueeze(-1) * F.one_hot(place.clamp(min=0, max=capacity - 1), capacity)
        dispatch = dispatch.to(x.dtype)
        inputs = torch.einsum("tec,td->ecd", dispatch, tokens)
        combine = dispatch * top[:, None, None]
        return torch.einsum("tec,ecd->td", combine, self.experts(inputs)).view_as(x)


class GShardEinsum(_Stacked):
    """GShard: two experts for each token, places in each batch, and the sum of two products of masks."""

    def forward(self, x: Tensor) -> Tensor:
        raw = self.gate(x).softmax(dim=-1)
        gate1, index1 = raw.max(dim=-1)
        mask1 = F.one_hot(index1, EXPERTS).to(x.dtype)
        gate2, index2 = (raw * (1.0 - mask1)).max(dim=-1)
        mask2 = F.one_hot(index2, EXPERTS).to(x.dtype)
        place1 = (torch.cumsum(mask1, dim=1) - mask1) * mask1
        mask1 = mask1 * (place1 < 3)
        place2 = (torch.cumsum(mask2, dim=1) - mask2 + mask1.sum(dim=1, keepdim=True)) * mask2
        mask2 = mask2 * (place2 < 3)
        combine = 0
        for gate, index, mask, place in ((gate1, index1, mask1, place1), (gate2, index2, mask2, place2)):
            kept, places = mask.sum(dim=-1), F.one_hot(place.sum(dim=-1).long().clamp(max=3), 4)[..., :3]
            combine = combine + (
                (gate / (gate1 + gate2 + 1e-9) * kept)[..., None, None]
                * F.one_hot(index, EXPERTS)[..., None] * places[..., None, :]
            )  # fmt: skip
        inputs = torch.einsum("bnd,bnec->ebcd", x, combine.bool().to(combine))
        hidden = F.gelu(torch.einsum("ebcd,edh->ebch", inputs, self.up))
        return torch.einsum("ebcd,bnec->bnd", torch.einsum("ebch,ehd->ebcd", hidden, self.down), combine)


class NanoMoe(_Stacked):
    """nanoMoE: a product with a permuted mask, and one with flattened weights."""

    def forward(self, x: Tensor) -> Tensor:
        n, capacity = x.shape[0] * x.shape[1], 6
        tokens = x.view(n, WIDTH)
        logits = self.gate(tokens)
        top, chosen = logits.topk(2, dim=-1)
        weights = F.softmax(torch.full_like(logits, float("-inf")).scatter_(-1, chosen, top), dim=-1)
        mask = F.one_hot(chosen, num_classes=EXPERTS).view(n, 2, EXPERTS).permute(1, 0, 2)
        rank = (torch.cumsum(mask.reshape(2 * n, EXPERTS), dim=0) - 1).reshape(2, n, EXPERTS)
        mask = mask * torch.lt(rank, capacity)
        rank = torch.sum(mask * rank, dim=-1)
        places = F.one_hot(rank, num_classes=capacity)
        combine = torch.sum((mask * weights[None, :]).unsqueeze(3) * places.unsqueeze(2), dim=0)
        inputs = combine.bool().permute(1, 2, 0).type_as(x) @ tokens
        return (combine.view(n, -1) @ self.experts(inputs).view(-1, WIDTH)).view_as(x)


FOUND = (SwitchEinsum, GShardEinsum, NanoMoe)


class _Dispatched(_Stacked):
    """Look-alikes differ in the tensor that sends the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        top, chosen = F.softmax(self.gate(tokens), dim=-1).max(dim=-1)
        place = torch.arange(tokens.shape[0]) % 6
        send = self.send(tokens, chosen, place, top)
        inputs = torch.einsum("tec,td->ecd", send, tokens)
        return torch.einsum("tec,ecd->td", send, self.experts(inputs)).view_as(x)

    def send(self, tokens: Tensor, chosen: Tensor, place: Tensor, top: Tensor) -> Tensor:
        raise NotImplementedError


class SoftDispatch(_Dispatched):
    """Soft MoE: every token goes to every place."""

    def send(self, tokens: Tensor, chosen: Tensor, place: Tensor, top: Tensor) -> Tensor:
        logits = self.gate(tokens)[..., None] * torch.linspace(0.5, 1.5, 6, dtype=tokens.dtype)
        return logits.softmax(0)


class NearlyOneHot(_Dispatched):
    """A small number is added to each entry."""

    def send(self, tokens: Tensor, chosen: Tensor, place: Tensor, top: Tensor) -> Tensor:
        mask = F.one_hot(chosen, EXPERTS)[..., None] * F.one_hot(place, 6)[:, None, :]
        return mask.to(tokens.dtype) * top[:, None, None] + 0.01 * top[:, None, None]


class StraightThrough(_Dispatched):
    """The entries that are zero have a gradient."""

    def send(self, tokens: Tensor, chosen: Tensor, place: Tensor, top: Tensor) -> Tensor:
        soft = self.gate(tokens).softmax(-1)[..., None] * F.one_hot(place, 6)[:, None, :]
        hard = (F.one_hot(chosen, EXPERTS)[..., None] * F.one_hot(place, 6)[:, None, :]).to(tokens.dtype)
        return hard + soft - soft.detach()


class MaskWritten(_Dispatched):
    """The mask is written in place after the product with it."""

    def send(self, tokens: Tensor, chosen: Tensor, place: Tensor, top: Tensor) -> Tensor:
        mask = F.one_hot(chosen, EXPERTS)[..., None] * F.one_hot(place, 6)[:, None, :]
        send = mask * top[:, None, None]
        mask.mul_(chosen[:, None, None] == 0)
        return send


LOOK_ALIKES = (SoftDispatch, NearlyOneHot, StraightThrough)
