"""Measures decoder models of transformers: what is fused, whether results are equal, and peak memory of a step.

    python -m benchmarks.decoders --output benchmarks/results/decoders.json

Each model has random weights, few and narrow layers, `attn_implementation="eager"` and experts in a loop as the file of
the model writes it, and is called with `labels`. With a width of 64, 1024 tokens and 128,256 classes, the logits are
the largest tensors of a step, as in the training of a model with a few billion parameters: there, 16,384 tokens have
8.4 GB of logits in float32, and a layer's activations are a tenth of that.

- **sites**: fused sites by rule, of all modules.
- **squares**: tensors of length x length that a training step reads (masks and scores), before and after.
- **repeats**: copies of keys or values for the heads that share them, before and after.
- **errors**: the largest error of any gradient in a float64 model on 128 tokens, as a share of the largest entry of
  that gradient. transformers computes the loss in float32, so the original has an error, too.
- **peak**: bytes that a step needs above what was held before it (`autofuse.measure.memory`).
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

import autofuse
from autofuse.measure.memory import measure_peak_memory, quiet_profiler
from benchmarks.lazy_logits import step_of

MODELS = ("llama", "qwen3", "mixtral", "gpt2", "gemma2", "gpt_oss")
_COMPARED = 128  # tokens of the steps in float64
_EXAMPLE = 48  # tokens of the example inputs of optimize: not the width, and not the length of the steps


def decoder(kind: str, options: argparse.Namespace) -> nn.Module:
    """A model of transformers with random weights, in training mode."""
    sizes = {
        "vocab_size": options.vocabulary, "hidden_size": options.width, "intermediate_size": 2 * options.width,
        "num_hidden_layers": options.layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": options.width // 4, "pad_token_id": 0,
    }  # fmt: skip
    if kind == "gpt2":
        sizes = {
            "vocab_size": options.vocabulary, "n_embd": options.width, "n_layer": options.layers, "n_head": 4,
            "bos_token_id": 1, "eos_token_id": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0,
        }  # fmt: skip
    if kind in ("mixtral", "gpt_oss"):
        sizes |= {"num_local_experts": 8, "num_experts_per_tok": 2}
    config = AutoConfig.for_model(kind, **sizes)
    model: nn.Module = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    return model.train()


def differences(plain: nn.Module, optimized: nn.Module, ids: Tensor) -> dict[str, Any]:
    """The losses, and the largest errors of a gradient, of both models in float64.

    transformers computes the loss in float32, also in a float64 model. So each gradient is compared with the one of a
    loss in float64. An error is a share of the largest entry of that gradient.
    """
    exact, plain, optimized = (copy.deepcopy(m).double() for m in (plain, plain, optimized))
    logits = exact(input_ids=ids).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    losses = [step_of(m, ids)() for m in (plain, optimized)]
    eager, fused = (_errors(m, exact) for m in (plain, optimized))
    assert eager.keys() == fused.keys() == dict(exact.named_parameters()).keys()
    errors = {"eager_error": max(eager.values()), "optimized_error": max(fused.values())}
    return {"losses": losses, "gradients": len(fused), **errors}


def _errors(model: nn.Module, exact: nn.Module) -> dict[str, float]:
    expected = {name: p.grad for name, p in exact.named_parameters() if p.grad is not None}
    return {
        name: float((p.grad - expected[name]).abs().max() / expected[name].abs().max().clamp_min(1e-300))
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def tensors_read(step: Callable[[], float], length: int, width: int) -> dict[str, int]:
    """The number of operators of a step that read a tensor of length x length, and that repeat heads."""
    with quiet_profiler(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        step()
    counts = Counter({"squares": 0, "repeats": 0})
    for event in recorded.events():
        shapes = [s for s in event.input_shapes or () if isinstance(s, (list, tuple))]
        counts["squares"] += any(list(s[-2:]) == [length, length] for s in shapes)
        counts["repeats"] += event.name == "aten::clone" and any(len(s) == 5 and s[-1] == width for s in shapes)
    return dict(counts)


def measure(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """All measurements of one model."""
    torch.manual_seed(0)
    plain = decoder(kind, options)
    model = copy.deepcopy(plain)
    ids = torch.randint(3, options.vocabulary, (1, options.length))
    short = ids[:, :_EXAMPLE]
    autofuse.optimize(model, {"input_ids": short, "labels": short}, tune=False)
    report = autofuse.report(model)
    found: dict[str, Any] = {"model": kind}
    found["sites"] = dict(sorted(Counter(s.rule for s in report.sites if s.status == "fused").items()))
    found |= differences(plain, model, ids[:, :_COMPARED])
    pairs = [(step_of(m, ids), m) for m in (plain, model)]
    for name, (step, _) in zip(("eager", "optimized"), pairs, strict=True):
        step()
        found[name] = tensors_read(step, options.length, options.width // 4)
        found[name]["peak_bytes"] = measure_peak_memory(step, torch.device("cpu")).bytes
    found["peak_ratio"] = found["optimized"]["peak_bytes"] / found["eager"]["peak_bytes"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results = []
    for kind in options.models:
        found = measure(kind, options)
        results.append(found)
        print(json.dumps(found), flush=True)
        if options.output:
            settings = {k: v for k, v in vars(options).items() if k != "output"}
            machine = {"torch": torch.__version__, "processor": platform.machine()}
            data = {"version": 1, "benchmark": "decoders", "settings": settings, **machine, "results": results}
            options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
