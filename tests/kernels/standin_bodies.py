"""What the functions of other packages compute, in plain torch, with the habits of the real ones that adapters guard.

Each is reached by its path, and given its arguments by the names that were recorded. Those that overwrite what they are
given overwrite it here; those that read outside of the classes, or a gradient as contiguous, assert here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.standin_habits import ScaledInPlace, wary

Named = dict[str, Any]


def _norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, rms: bool) -> Tensor:
    sizes = x.shape[-1:]
    if not rms:
        return F.layer_norm(x, sizes, weight, bias, eps)
    normed = F.rms_norm(x, sizes, weight, eps)
    return normed if bias is None else normed + bias


def _attend(q: Tensor, k: Tensor, v: Tensor, a: Named) -> Tensor:
    """(batch, length, heads, head_dim), grouped, causal from the bottom right."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scale = q.shape[-1] ** -0.5 if a["softmax_scale"] is None else a["softmax_scale"]
    scores = q @ k.mT * scale
    if a["softcap"]:
        scores = a["softcap"] * torch.tanh(scores / a["softcap"])
    if a["causal"]:
        queries, keys = scores.shape[-2:]
        kept = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        scores = scores.masked_fill(~kept, -torch.inf)
    left, right = (-1 if n is None else n for n in a["window_size"])
    if left >= 0 or right >= 0:
        queries, keys = scores.shape[-2:]
        ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
        outside = (ahead < -left) & (left >= 0) | (ahead > right) & (right >= 0)
        scores = scores.masked_fill(outside, -torch.inf)
    if (sinks := a.get("learnable_sink")) is not None:
        assert sinks.shape == q.shape[1:2], "flash-attn-4 takes one sink for each head"
        scores = torch.cat((scores, sinks[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)), -1)
    weights = F.dropout(scores.softmax(-1)[..., : k.shape[-2]], a.get("dropout_p", 0.0))
    return (weights @ v).transpose(1, 2)


def _flash_attention(a: Named) -> Tensor:
    assert a["q"].shape[-1] == a["v"].shape[-1] <= 256, "flash-attn 2 takes one width of heads"
    assert not (a["softcap"] and a["dropout_p"])
    return _attend(a["q"], a["k"], a["v"], a)


def _attend_packed(a: Named) -> Tensor:
    starts = [a[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    assert a["max_seqlen_q"] >= max(e - s for s, e in zip(starts[0], starts[0][1:], strict=False))
    parts = []
    for i in range(len(starts[0]) - 1):
        rows, keys = (slice(s[i], s[i + 1]) for s in starts)
        parts.append(_attend(a["q"][None, rows], a["k"][None, keys], a["v"][None, keys], a)[0])
    return torch.cat(parts)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x (batch, length, heads, d), angles (length, d / 2)."""
    assert cos.ndim == 2 and 2 * cos.shape[-1] == x.shape[-1]
    cos, sin = cos[None, :, None], sin[None, :, None]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def _flash_norm(a: Named) -> Any:
    x = F.dropout(a["x"], a["dropout_p"])
    assert a["residual"] is None or a["residual"].shape == x.shape
    total = x if a["residual"] is None else x + a["residual"]
    normed = _norm(total, a["weight"], a["bias"], a["eps"], a["is_rms_norm"])
    return (normed, total) if a["prenorm"] else normed


def _mlp(x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, activation: str) -> Tensor:
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "gelu_approx": lambda t: F.gelu(t, approximate="tanh"),
        "gelu_tanh_approx": lambda t: F.gelu(t, approximate="tanh"),
        "gelu_erf": F.gelu,
        "relu": F.relu,
        "relu_sq": lambda t: F.relu(t).square(),
        "silu": F.silu,
    }
    return F.linear(functions[activation](F.linear(x, w1, b1)), w2, b2)


def _cross_entropies(logits: Tensor, labels: Tensor, ignored: int, smoothing: float, reduction: str = "none") -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=ignored, label_smoothing=smoothing, reduction=reduction)


def _overwrite_inputs(gated: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Named], tuple[Tensor, Tensor]]:
    """Liger's backward of a gated activation: the gradients lie where gate and up were."""

    def backward(a: Named) -> tuple[Tensor, Tensor]:
        gate, up = (a[name].detach().clone().requires_grad_() for name in "ab")
        with torch.enable_grad():
            made = gated(gate, up)
        for name, gradient in zip("ab", torch.autograd.grad(made, (gate, up), a["dc"]), strict=True):
            assert a[name].is_contiguous() and a["dc"].is_contiguous()
            a[name].data.copy_(gradient)
        return a["a"], a["b"]

    return backward


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _geglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def _liger_rope(a: Named) -> tuple[Tensor, Tensor]:
    """In place, on (batch, heads, length, d) whose transpose is contiguous; angles (1, length, d), halves equal."""
    for name in "qk":
        rows = a[name].transpose(1, 2).contiguous()
        half = a["cos"].shape[-1] // 2
        rows.data.copy_(_rotate(rows, a["cos"][0, :, :half], a["sin"][0, :, :half], False))
        a[name] = rows.transpose(1, 2)
    return a["q"], a["k"]


def _quack_rms_norm(a: Named) -> Any:
    seen = any(t is not None and t.requires_grad for t in (a["x"], a["weight"], a["bias"]))
    assert seen or a["residual"] is None or not a["residual"].requires_grad, "quack would keep nothing for backward"
    total = a["x"] if a["residual"] is None else a["x"] + a["residual"]
    normed = _norm(total, a["weight"], a["bias"], a["eps"], True)
    return (normed, total) if a["prenorm"] else normed


def _quack_layer_norm(a: Named) -> Any:
    assert a["x"].ndim == 2 and a["weight"].dtype is torch.float32
    rstd = torch.rsqrt(a["x"].var(-1, correction=0) + a["eps"])
    assert a["return_rstd"] and a["return_mean"]
    return _norm(a["x"], a["weight"], a["bias"], a["eps"], False), rstd, a["x"].mean(-1)


def _quack_layer_norm_backward(a: Named) -> Any:
    assert a["dout"].is_contiguous()
    normed = (a["x"] - a["mean"][:, None]) * a["rstd"][:, None]
    wide = a["dout"] * a["weight"]
    centred = wide - wide.mean(-1, keepdim=True) - normed * (wide * normed).mean(-1, keepdim=True)
    of_bias = a["dout"].sum(0) if a["has_bias"] else None
    return centred * a["rstd"][:, None], (a["dout"] * normed).sum(0), of_bias


def _liger_cross_entropy(a: Named) -> Any:
    assert a["weight"] is None and a["_input"].ndim == 2

    def loss_of(x: Tensor) -> Tensor:
        return _cross_entropies(x, a["target"], a["ignore_index"], a["label_smoothing"], a["reduction"])

    original = a["_input"].detach().clone()
    result = loss_of(a["_input"]) if a["reduction"] == "none" else ScaledInPlace.apply(loss_of, a["_input"])
    a["overwritten"].data.copy_(original.softmax(-1))  # the logits are gone
    return result.nan_to_num(), None, None, None  # and the mean over no rows is 0


def _liger_linear_cross_entropy(a: Named) -> Any:
    assert a["ce_weight"] is None and a["accum_dtype"] is torch.float32 and a["reduction"] != "none"

    def loss_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        logits = F.linear(x, weight, bias)
        return _cross_entropies(logits, a["target"], a["ignore_index"], a["label_smoothing"], a["reduction"])

    return ScaledInPlace.apply(loss_of, a["_input"], a["weight"], a["bias"]).nan_to_num(), None, None, None


def _quack_linear_cross_entropy(a: Named) -> Any:
    assert a["x"].ndim == 2 and a["reduction"] in ("mean", "sum")

    def loss_of(x: Tensor, weight: Tensor) -> Tensor:
        return _cross_entropies(x @ weight.mT, a["target"], a["ignore_index"], 0.0, a["reduction"])

    return ScaledInPlace.apply(loss_of, a["x"], a["weight"])


def _apex_cross_entropy(a: Named) -> Tensor:
    assert a["logits"].dtype is not torch.bfloat16
    assert a["half_to_float"] == (a["logits"].dtype is torch.float16)
    assert a["labels"].min() >= 0, "apex would read before the logits"
    losses = _cross_entropies(a["logits"].float(), a["labels"], -100, a["smoothing"])
    return wary(losses.masked_fill(a["labels"] == a["padding_idx"], 0.0))


def _apex_mlp(a: Named) -> Tensor:
    operands = [a[name] for name in ("input", "weight1", "bias1", "weight2", "bias2")]
    assert all(t.is_contiguous() for t in operands) and a["input"].ndim == 2
    return wary(_mlp(*operands, "gelu_approx"))


def _quack_cross_entropy(a: Named) -> Tensor:
    assert a["x"].ndim == 2 and a["weight"] is None and not a["inplace_backward"] and a["reduction"] == "none"
    return wary(_cross_entropies(a["x"], a["target"], a["ignore_index"], 0.0))


def _quack_softmax(a: Named) -> Tensor:
    assert a["x"].ndim == 2 and a["x"].is_contiguous()
    return wary(a["x"].softmax(-1))


def _liger_norm(a: Named) -> Tensor:
    assert a["casting_mode"] == "gemma" and not a["in_place"] and a["W"] is not None
    return _norm(a["X"], a["W"], None, a["eps"], True)


def _liger_add_norm(a: Named) -> tuple[Tensor, Tensor]:
    total = a["X"] + a["R"]
    return _liger_norm(a | {"X": total}), total


def _swiglu_halves(a: Named) -> Tensor:
    assert a["y"].ndim == 2 and not a["in_place"]
    return _swiglu(*a["y"].chunk(2, -1))


def _adam(a: Named) -> torch.optim.Optimizer:
    assert a["adam_w_mode"] and a["bias_correction"] and not a["amsgrad"]
    return torch.optim.AdamW(a["params"], a["lr"], a["betas"], a["eps"], a["weight_decay"])


_NORMS = "apex.normalization.fused_layer_norm."
_LIGER = "liger_kernel.ops."
BODIES: dict[str, Callable[[Named], Any]] = {
    "apex.optimizers.fused_adam.FusedAdam": _adam,
    "flash_attn.flash_attn_interface.flash_attn_func": _flash_attention,
    "flash_attn.flash_attn_interface.flash_attn_varlen_func": _attend_packed,
    "flash_attn_interface.flash_attn_func": lambda a: _attend(a["q"], a["k"], a["v"], a),
    "flash_attn_interface.flash_attn_varlen_func": lambda a: _attend_packed(a),
    "flash_attn.cute.interface.flash_attn_func": lambda a: (_attend(a["q"], a["k"], a["v"], a), None),
    "flash_attn.cute.interface.flash_attn_varlen_func": lambda a: (_attend_packed(a), None),
    "flash_attn.ops.triton.layer_norm.layer_norm_fn": _flash_norm,
    "flash_attn.layers.rotary.apply_rotary_emb": lambda a: _rotate(a["x"], a["cos"], a["sin"], a["interleaved"]),
    "flash_attn.ops.activations.SwiGLUFunction": lambda a: _swiglu(a["x"], a["y"]),
    "flash_attn.ops.triton.cross_entropy.cross_entropy_loss": lambda a: (
        _cross_entropies(a["logits"].float(), a["labels"], a["ignore_index"], a["label_smoothing"]),
        torch.zeros(len(a["labels"])),
    ),
    "flash_attn.ops.fused_dense.fused_mlp_func": lambda a: _mlp(
        a["x"], a["weight1"], a["bias1"], a["weight2"], a["bias2"], a["activation"]
    ),
    _NORMS + "FusedLayerNormAffineFunction": lambda a: _norm(a["input"], a["weight"], a["bias"], a["eps"], False),
    _NORMS + "FusedLayerNormFunction": lambda a: _norm(a["input"], None, None, a["eps"], False),
    _NORMS + "FusedRMSNormAffineFunction": lambda a: _norm(a["input"], a["weight"], None, a["eps"], True),
    _NORMS + "FusedRMSNormFunction": lambda a: _norm(a["input"], None, None, a["eps"], True),
    "apex.contrib.xentropy.softmax_xentropy.SoftmaxCrossEntropyLoss": _apex_cross_entropy,
    "apex.fused_dense.fused_dense.FusedDenseGeluDenseFunc": _apex_mlp,
    _LIGER + "rms_norm.LigerRMSNormFunction": _liger_norm,
    _LIGER + "layer_norm.LigerLayerNormFunction": lambda a: _norm(a["X"], a["W"], a["B"], a["eps"], False),
    _LIGER + "fused_add_rms_norm.LigerFusedAddRMSNormFunction": _liger_add_norm,
    _LIGER + "swiglu.swiglu_forward": lambda a: (a["a"], a["b"], _swiglu(a["a"], a["b"])),
    _LIGER + "swiglu.swiglu_backward": _overwrite_inputs(_swiglu),
    _LIGER + "swiglu.LigerFusedGateUpSiLUMulFunction": _swiglu_halves,
    _LIGER + "geglu.geglu_forward": lambda a: (a["a"], a["b"], _geglu(a["a"], a["b"])),
    _LIGER + "geglu.geglu_backward": _overwrite_inputs(_geglu),
    _LIGER + "rope.LigerRopeFunction": _liger_rope,
    _LIGER + "softmax.LigerSoftmaxFunction": lambda a: a["input_"].softmax(-1),
    _LIGER + "cross_entropy.LigerCrossEntropyFunction": _liger_cross_entropy,
    _LIGER + "fused_linear_cross_entropy.LigerFusedLinearCrossEntropyFunction": _liger_linear_cross_entropy,
    "quack.rmsnorm.rmsnorm": _quack_rms_norm,
    "quack.rmsnorm.layernorm_fwd": _quack_layer_norm,
    "quack.rmsnorm.layernorm_bwd": _quack_layer_norm_backward,
    "quack.softmax.softmax": _quack_softmax,
    "quack.cross_entropy.cross_entropy": _quack_cross_entropy,
    "quack.linear_cross_entropy.chunked_linear_cross_entropy": _quack_linear_cross_entropy,
    "quack.rotary.apply_rotary_emb": lambda a: _rotate(a["x"], a["cos"], a["sin"], a["interleaved"]),
    "quack.mlp.mlp_func": lambda a: _mlp(a["x"], a["weight1"], a["bias1"], a["weight2"], a["bias2"], a["activation"]),
}
