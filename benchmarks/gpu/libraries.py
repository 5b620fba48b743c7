"""Whole training steps of decoders of transformers, called with `labels`: eager, SDPA, torch.compile and autofuse.

The models have the widths of published ones, four layers and random weights in bf16. `eager` is the attention that the
library spells out, and `autofuse` starts from it. `SDPA` is the library's default, if it has it for the model;
torch.compile compiles that one. Experts are loops in all but torch.compile's and SDPA's way, which use the library's
default. A step is as in `benchmarks.gpu.training`.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import nn

from benchmarks.gpu.models import TrainedModel
from benchmarks.gpu.store import Results, Row, Setting, Task
from benchmarks.gpu.training import row as training_row

_CLASSES = 128_256
_DENSE = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
_SPARSE = {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**_DENSE, "head_dim": 64},
    "qwen3": {**_DENSE, "num_attention_heads": 16, "intermediate_size": 6144, "head_dim": 128},
    "mixtral": {**_SPARSE, "num_local_experts": 8, "num_experts_per_tok": 2},
    "gpt2": {"n_embd": 1024, "n_head": 16, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "gemma2": {**_DENSE, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
    "gpt_oss": {**_SPARSE, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4},
}
# How the library computes attention and experts, and then the way of benchmarks.gpu.training.
_WAYS = {
    "eager": ("eager", "eager"),
    "SDPA": ("sdpa", "eager"),
    "SDPA, torch.compile": ("sdpa", "torch.compile"),
    "autofuse": ("eager", "autofuse"),
    "autofuse, compiled blocks": ("eager", "autofuse, compiled blocks"),
    "autofuse + torch.compile": ("eager", "autofuse + torch.compile"),
}
_NO_SDPA = frozenset({"gemma2", "gpt_oss"})


def tasks(setting: Setting, results: Results) -> list[Task]:
    """One for each model and way."""
    return [
        Task(f"libraries/{kind}/{way}", partial(row, kind, way, setting), 100)
        for kind in MODELS for way in _WAYS if not (kind in _NO_SDPA and way == "SDPA")
    ]  # fmt: skip


def row(kind: str, way: str, setting: Setting) -> Row:
    """The figures of a training step, as in `benchmarks.gpu.training`."""
    if find_spec("transformers") is None:
        return {"model": kind, "way": way, "absent": "transformers is not installed."}
    attention, training_way = _WAYS[way]
    return {**training_row(_trained(kind, attention, setting.toy), training_way, setting), "way": way}


def _trained(kind: str, attention: str, toy: bool) -> TrainedModel:
    batch, length, classes = (1, 24, 97) if toy else (2, 2048, _CLASSES)
    spelled = "eager" if attention == "eager" or kind in _NO_SDPA else "sdpa"
    build = partial(_decoder, kind, spelled, attention == "eager", toy, classes)
    return TrainedModel(kind, build, batch, length, classes, takes_labels=True)


def _decoder(kind: str, attention: str, loops: bool, toy: bool, classes: int) -> nn.Module:
    """A model of transformers with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = _toy(MODELS[kind]) if toy else MODELS[kind]
    layers = "n_layer" if kind == "gpt2" else "num_hidden_layers"
    config = AutoConfig.for_model(
        kind, **sizes, **{layers: 1 if toy else 4}, vocab_size=classes, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    experts = {"experts_implementation": "eager"} if loops else {}
    model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation=attention, **experts)
    return model


def _toy(sizes: dict[str, Any]) -> dict[str, Any]:
    """The sizes divided by as much as keeps the structure: experts and heads of a few entries."""
    small = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "n_embd": 32}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "n_head": 4, "num_local_experts": 4}
    small |= {"num_experts_per_tok": 2}
    return {name: small.get(name, value) for name, value in sizes.items()}
