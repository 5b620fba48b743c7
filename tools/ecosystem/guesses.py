"""Guesses small values for arguments by their names: sizes for constructors, tensors for calls.

If a guess does not fit, the called code raises an exception, and the caller tries the next guess.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

WIDTH, HEADS, LENGTH = 32, 4, 10
_SIZES: tuple[tuple[str, object], ...] = (  # the first pattern that matches a name counts
    (r"drop|^p$|prob", 0.0),
    (r"eps", 1e-5),
    (r"dim_?head|head_?dim|d_head|d_k|d_v|key_dim|channels_per_head|kv_channels", WIDTH // HEADS),
    (r"(n|num|number)_?(attention_|attn_|kv_|key_value_)?heads?$|^heads?$|_heads$|nhead", HEADS),
    (r"^(n|num)?_?(layers?|blocks?)$|depth|num_hidden_layers", 1),
    (r"vocab|num_tokens|num_embeddings", 50),
    (r"max_?(seq|pos|len)|seq_?len|context_len|n_positions|num_patches|max_position", LENGTH),
    (r"(image|img|input)_?(size|resolution)|resolution", 8),
    (r"patch_?size|window_?size|kernel_?size", 2),
    (r"num_classes|n_classes|out_features", 5),
    (r"mult|ratio|expand|groups?$|stride|dilation", 1),
    (r"intermediate|ffn|mlp_dim|hidden_features|feedforward|inner_dim|d_ff|dim_feed", 2 * WIDTH),
    (r"dim|size|channels?|features|width|d_model|embed|planes|filters|units|hidden", WIDTH),
    (r"^(n|num|max|min)_|length|^n$|^k$", 4),
    (r"scale|temperature|beta|alpha|gamma", 1.0),
    (r"^(use|is|with|has|add|do)_|bias|causal|flag", False),
    (r"device|dtype|name|key", None),
)
_FORMS: tuple[tuple[int, ...], ...] = (
    (2, LENGTH, WIDTH), (2, HEADS, LENGTH, WIDTH // HEADS), (2, WIDTH, 8, 8), (2, LENGTH, HEADS, WIDTH // HEADS),
    (2, WIDTH, LENGTH), (LENGTH, WIDTH), (2, WIDTH), (2, 8, 8, WIDTH), (2, 3, 8, 8), (8, WIDTH // HEADS),
)  # fmt: skip
_MASKS: tuple[tuple[int, ...], ...] = (
    (2, LENGTH), (LENGTH, LENGTH), (2, LENGTH, LENGTH), (2, 1, 1, LENGTH), (2, 1, LENGTH, LENGTH)
)  # fmt: skip


class Config:
    """A configuration whose attributes are guesses."""

    def __init__(self, **known: object) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "act" in name:
            return "gelu"
        return size(name, None)

    def get(self, name: str, default: object = None) -> object:
        return getattr(self, name, default)


def size(name: str, default: object) -> object:
    """The value of the constructor argument `name`."""
    if "config" in name or name in ("cfg", "args", "hparams"):
        return Config()
    return next((value for pattern, value in _SIZES if re.search(pattern, name.lower())), default)


def constructions(function: Callable[..., object]) -> Iterator[dict[str, object]]:
    """Yield keyword arguments for a constructor: for required arguments and sizes, then for required arguments only."""
    parameters = [p for p in _parameters(function) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    yield {p.name: size(p.name, 1) for p in parameters if p.default is p.empty or _is_size(p.default)}
    yield {p.name: size(p.name, 1) for p in parameters if p.default is p.empty}


def _is_size(default: object) -> bool:
    return isinstance(default, (int, float)) and not isinstance(default, bool)


def calls(function: Callable[..., object]) -> Iterator[dict[str, tuple[str, tuple[int, ...] | object]]]:
    """Yield the arguments of a call, by name: ("tensor", shape), ("mask", shape) or ("value", it).

    Likely ones first.
    """
    parameters = [p for p in _parameters(function) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p.name for p in parameters if p.default is p.empty]
    optional = [p.name for p in parameters if p.default is None and "mask" in p.name]
    for form in _FORMS:
        given = {n: _description(n, form) for n in required if "mask" not in n}
        masked = [n for n in required if "mask" in n]
        for mask in _MASKS if masked else ((),):
            yield {**given, **dict.fromkeys(masked, ("mask", mask))}
        for n in optional:
            for mask in _MASKS:
                yield {**given, **dict.fromkeys(masked, ("mask", mask)), n: ("mask", mask)}


def _description(name: str, form: tuple[int, ...]) -> tuple[str, tuple[int, ...] | object]:
    low = name.lower()
    if low.endswith("ids") or low in ("tokens", "idx", "input_tokens"):
        return "ids", form[:2]
    if low in ("h", "w", "height", "width"):
        return "value", 8
    if low in ("scale", "eps", "dropout", "dropout_p", "p", "training", "num_heads", "heads", "module"):
        return "value", size(name, None)
    return "tensor", form


def make_value(kind: str, what: Any, seed: int) -> Any:
    """Make the value that a description from `calls` denotes. The same seed gives the same value."""
    draw = torch.Generator().manual_seed(seed)
    if kind == "tensor":
        return torch.randn(*what, generator=draw, dtype=torch.get_default_dtype()).requires_grad_()
    if kind == "ids":
        return torch.randint(0, 4, what, generator=draw)
    if kind == "mask":
        kept = torch.rand(*what, generator=draw) > 0.3
        kept[..., 0] = True  # no row is masked out entirely: it may give NaN in one half and a number in the other
        return kept
    return what


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    found = list(inspect.signature(function).parameters.values())
    return [p for p in found if p.name not in ("self", "cls")]
