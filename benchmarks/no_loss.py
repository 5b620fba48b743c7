"""Checks that no optimized model is slower: models of transformers, both modes, shapes that were not tuned on.

    python -m benchmarks.no_loss --output benchmarks/results/no_loss.json
    python -m benchmarks.no_loss --only LlamaModel BertModel

The models have their hand-written attention and two layers of width 256, on a CPU. Each is optimized once, as a user
would do it, with inputs of 4 sequences of 64 tokens. Then steps of a copy of the original and of the optimized model
are timed in interleaved pairs at that shape and at three others. Steps are those of `autofuse.compare` for training,
and the forward without gradients for inference. On a loaded machine the clock counts the time that they had a core. A
loss is a ratio whose whole interval is below 0.98. The same is measured for two copies of the original, which shows the
noise of the machine. Exits with 1 if there is a loss.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import autofuse
from autofuse.measure.environment import environment
from autofuse.measure.step import call_model, training_step
from autofuse.measure.step_pairs import time_steps
from benchmarks.rounds import STEADY_ALLOCATOR, with_steady_allocator

CPU = torch.device("cpu")
LEAST = 0.98
TUNED = (4, 64)
OTHERS = ((1, 16), (8, 32), (2, 192))  # batch, length
WIDTH, LAYERS, HEADS, INNER, CLASSES = 256, 2, 4, 512, 500
Row = dict[str, Any]
Inputs = Callable[[tuple[int, int]], dict[str, Tensor]]

_PLAIN = {
    "vocab_size": CLASSES, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": INNER, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_PLAIN, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS}
_GPT2 = {"vocab_size": CLASSES, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 256}
_BART = {
    "vocab_size": CLASSES, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_T5 = {"vocab_size": CLASSES, "d_model": WIDTH, "d_kv": 64, "d_ff": INNER, "num_layers": LAYERS, "num_heads": HEADS,
       "decoder_start_token_id": 0}  # fmt: skip
_IMAGE = {**_PLAIN, "image_size": 64, "patch_size": 8}

# class -> configuration, options, kind of input
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    **{f"{n}Model": (f"{n}Config", _PLAIN, "text") for n in (
        "Bert", "Roberta", "Electra", "XLMRoberta", "Camembert", "MPNet", "Ernie", "RoFormer", "LayoutLM",
        "MegatronBert", "DebertaV2", "Deberta", "XLMRobertaXL", "Nystromformer", "Splinter", "GPTNeoX", "Biogpt",
    )},
    **{f"{n}Model": (f"{n}Config", _GROUPED, "text") for n in (
        "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi", "Phi3", "StableLm", "Olmo", "Olmo2", "Granite",
        "Cohere", "Starcoder2", "Nemotron", "SmolLM3", "Glm", "Helium", "Ministral", "Arcee",
    )},
    "GPT2Model": ("GPT2Config", _GPT2, "text"),
    "GPTJModel": ("GPTJConfig", {**_GPT2, "rotary_dim": 32}, "text"),
    "BloomModel": ("BloomConfig", {"vocab_size": CLASSES, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS},
                   "text"),
    "OPTModel": ("OPTConfig", {**_PLAIN, "ffn_dim": INNER, "word_embed_proj_dim": WIDTH}, "text"),
    "DistilBertModel": ("DistilBertConfig", {"vocab_size": CLASSES, "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS,
                                             "hidden_dim": INNER}, "text"),
    "AlbertModel": ("AlbertConfig", {**_PLAIN, "embedding_size": 64}, "text"),
    "BartModel": ("BartConfig", _BART, "both"),
    "MBartModel": ("MBartConfig", _BART, "both"),
    "PegasusModel": ("PegasusConfig", _BART, "both"),
    "T5Model": ("T5Config", _T5, "both"),
    "MT5Model": ("MT5Config", _T5, "both"),
    "ViTModel": ("ViTConfig", _IMAGE, "image"),
    "DeiTModel": ("DeiTConfig", _IMAGE, "image"),
    "Dinov2Model": ("Dinov2Config", {**_IMAGE, "mlp_ratio": 2}, "image"),
    "BeitModel": ("BeitConfig", _IMAGE, "image"),
    "SiglipVisionModel": ("SiglipVisionConfig", _IMAGE, "image"),
    "CLIPVisionModel": ("CLIPVisionConfig", _IMAGE, "image"),
    "CLIPTextModel": ("CLIPTextConfig", _PLAIN, "text"),
}  # fmt: skip


def inputs_of(kind: str, shape: tuple[int, int]) -> dict[str, Tensor]:
    """The inputs of a model of that kind. For images only the batch varies."""
    batch, length = shape
    if kind == "image":
        return {"pixel_values": torch.randn(batch, 3, 64, 64)}
    tokens = torch.randint(3, CLASSES, (batch, length))
    return {"input_ids": tokens, "decoder_input_ids": tokens} if kind == "both" else {"input_ids": tokens}


def build_model(name: str) -> nn.Module:
    """The model called `name`, with random weights and hand-written attention.

    Raises:
        ImportError: if this version of transformers does not have it.
    """
    import transformers

    config, options, _ = MODELS[name]
    if not hasattr(transformers, config) or not hasattr(transformers, name):
        raise ImportError(f"transformers {transformers.__version__} has no {name}.")
    model_or_none: nn.Module = getattr(transformers, name)(
        getattr(transformers, config)(attn_implementation="eager", **options)
    )
    return model_or_none


def rows_of(name: str) -> Iterator[Row]:
    """The times of one model, for each mode and shape."""
    torch.manual_seed(0)
    original, kind = build_model(name), MODELS[name][2]
    optimized = autofuse.optimize(copy.deepcopy(original), inputs_of(kind, TUNED))
    report = autofuse.report(optimized)
    second_copy = copy.deepcopy(original)
    for training in (True, False):
        for model in (original, optimized, second_copy):
            model.train(training)
        for shape in (TUNED, *OTHERS):
            inputs = inputs_of(kind, shape)
            step = training_step if training else _inference
            found = time_steps(partial(step, original, inputs), partial(step, optimized, inputs), CPU)
            control = time_steps(partial(step, original, inputs), partial(step, second_copy, inputs), CPU)
            yield {
                "model": name, "mode": "training" if training else "inference", "shape": list(shape),
                "ratio": found.effect.ratio, "interval": list(found.effect.interval), "clock": found.clock,
                "control": control.effect.ratio, "control_interval": list(control.effect.interval),
                "loss": found.effect.interval.high < LEAST, "control_loss": control.effect.interval.high < LEAST,
                "sites": report.summary, "slower_in_a_mode": sum("stays" in s.reason for s in report),
            }  # fmt: skip


def _inference(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    with torch.no_grad():
        call_model(model, inputs)


def as_text(row: Row) -> str:
    """One row on one line."""
    low, high = row["interval"]
    shape = " x ".join(map(str, row["shape"]))
    loss = "  LOSS" if row["loss"] else ""
    return (
        f"{row['model']}, {row['mode']}, {shape}: {row['ratio']:.2f}x ({low:.2f} to {high:.2f}), "
        f"control {row['control']:.2f}x; {row['sites']}{loss}"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.no_loss", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="MODEL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    rows, left_out = list[Row](), dict[str, str]()
    for name in options.only or MODELS:
        try:
            for row in rows_of(name):
                rows.append(row)
                print(as_text(row), flush=True)
        except Exception as error:  # the library may have changed; report the model and time the others
            left_out[name] = f"{type(error).__name__}: {error}"
            print(f"{name} is left out: {left_out[name][:120]}", flush=True)
        if options.output:
            options.output.write_text(as_json(rows, left_out, options.threads))
    losses, noise = (sum(row[name] for row in rows) for name in ("loss", "control_loss"))
    print(f"{losses} losses in {len(rows)} comparisons; of two copies of the original: {noise}")
    return 1 if losses else 0


def as_json(rows: list[Row], left_out: dict[str, str], threads: int) -> str:
    """The result in the form in which it is stored."""
    settings = {"threads": threads, "tuned": list(TUNED), "least": LEAST, "allocator": STEADY_ALLOCATOR}
    data = {"version": 1, "benchmark": "no_loss", "settings": settings, "environment": environment(CPU)}
    return json.dumps(data | {"left_out": left_out, "rows": rows}, indent=2) + "\n"


if __name__ == "__main__":
    with_steady_allocator()
    sys.exit(main())
