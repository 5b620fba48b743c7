"""Peak memory of a training step of a Llama with a large vocabulary: as written, and optimized.

    python -m benchmarks.lazy_logits --output benchmarks/results/lazy_logits.json

The model comes from transformers and is called with `labels`; it returns its logits next to the loss. A peak is what a
step needs above what was held before it (`autofuse.measure.memory`). The losses of both models are compared, too.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

import autofuse
from autofuse.measure.memory import measure_peak_memory


def language_model(kind: str, options: argparse.Namespace) -> nn.Module:
    """A model of transformers with random weights and few, narrow layers."""
    sizes = {
        "vocab_size": options.vocabulary, "hidden_size": options.width, "intermediate_size": 2 * options.width,
        "num_hidden_layers": options.layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": options.width // 4, "pad_token_id": 0,
    }  # fmt: skip
    model: nn.Module = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **sizes), attn_implementation="eager"
    )
    return model.train()


def step_of(model: nn.Module, ids: Tensor) -> Callable[[], float]:
    """A forward and a backward pass. The logits are held until the end of the step."""

    def step() -> float:
        model.zero_grad()
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        return float(output.loss)

    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--models", nargs="+", default=["llama", "gemma2"])
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args()
    results = []
    for kind in options.models:
        torch.manual_seed(0)
        plain = language_model(kind, options)
        model = copy.deepcopy(plain)
        ids = torch.randint(1, options.vocabulary, (1, options.length))
        autofuse.optimize(model, {"input_ids": ids[:, :64], "labels": ids[:, :64]}, tune=False)
        losses = [step_of(m, ids)() for m in (plain, model)]
        peaks = [measure_peak_memory(step_of(m, ids), torch.device("cpu")) for m in (plain, model)]
        eager, optimized = (p.bytes or 0 for p in peaks)
        print(f"{kind}: {eager / 2**20:.0f} MiB -> {optimized / 2**20:.0f} MiB, {optimized / eager:.2f} times")
        results.append({"model": kind, "eager_bytes": eager, "optimized_bytes": optimized, "losses": losses})
    if options.output:
        settings = {k: v for k, v in vars(options).items() if k != "output"}
        machine = {"torch": torch.__version__, "processor": platform.machine()}
        data = {"version": 1, "benchmark": "lazy_logits", "settings": settings, **machine, "results": results}
        options.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
