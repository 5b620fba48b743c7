"""`autofuse plan` against formulas and figures that others published, with the error of each case.

    python -m benchmarks.plan_accuracy                               # prints the tables
    python -m benchmarks.plan_accuracy --output docs/plan-accuracy.md

Everything is planned on tensors without numbers, so a model of 540 billion parameters takes no memory. Where a figure
grows evenly with equal layers, the models have 2 and 4 of them (or 1 and 2) and the rest is added by the difference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.planning import plan
from autofuse.profiling.live.original_flops import model_flops_of_original
from benchmarks.published_figures import MODELS, THROUGHPUTS, ZERO_TABLE, Shape

GB = 1e9


@dataclass(frozen=True)
class Case:
    """One published or computed figure next to the planned one."""

    name: str
    expected: float
    planned: float

    @property
    def error(self) -> float:
        """Relative error of the planned figure."""
        return self.planned / self.expected - 1


class Megatron(nn.Module):
    """A GPT layer as Korthikanti et al. (2022, section 4) count it: dropout masks take one byte, as on a GPU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.core = CoreAttention()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = self.core(q.contiguous(), k.contiguous(), v.contiguous()).transpose(1, 2).flatten(2)
        x = x + _dropout(self.out(mixed))
        return x + _dropout(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class CoreAttention(nn.Module):
    """The part that selective recomputation computes again."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _dropout(torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)) @ v


def _dropout(x: Tensor) -> Tensor:
    dropped: Tensor = torch.native_dropout(x, 0.1, True)[0]
    return dropped


class Decoder(nn.Module):
    """A stack of layers that gets and returns hidden states."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Megatron(width, heads) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def activation_bytes(width: int, heads: int, length: int, batch: int, layers: int, **options: Any) -> int:
    """Planned activations of a stack of layers at the peak of a step in bfloat16."""
    with torch.device("meta"):
        model, x = Decoder(width, heads, layers), torch.empty(batch, length, width)
    found = plan(model, x, dtype="bfloat16", optimizer="none", fuse=False, **options)
    return found.before.memory.activations


def activation_cases(width: int, heads: int, length: int, batch: int) -> Iterator[Case]:
    """Bytes of one layer, by Korthikanti et al. 2022, table 2 and equations 1 to 6.

    The batch has to be so large that the peak is where the backward begins: activations have to outweigh gradients.
    """
    sbh, scores, t = length * batch * width, 5 * heads * length / width, 8
    name = f"h {width:,}, {heads} heads, s {length:,}, b {batch}"
    selective = {"checkpointing": "layers.*.core"}
    forms: tuple[tuple[str, dict[str, Any], float], ...] = (
        ("sbh (34 + 5as/h)", {}, sbh * (34 + scores)),
        ("tensor + sequence parallel over 8: sbh/t (34 + 5as/h)", {"tensor": t}, sbh / t * (34 + scores)),
        ("selective recomputation: 34 sbh", selective, sbh * 34),
        ("both: 34 sbh/t", {"tensor": t, **selective}, sbh * 34 / t),
        ("full recomputation: 2 sbh", {"checkpointing": "block"}, sbh * 2),
        ("first of 4 stages, 8 microbatches: sbh (34 + 5as/h) for each layer", {"pipeline": 4}, sbh * (34 + scores)),
        ("sequence divided by 4: sbh/4 (34 + 5as/h)", {"context": 4}, sbh / 4 * (34 + scores)),
    )
    for form, options, expected in forms:
        few, many = (activation_bytes(width, heads, length, batch, layers, **options) for layers in (2, 4))
        yield Case(f"{name}: {form}", expected, (many - few) / 2)


@cache
def _stack(numbers: float) -> tuple[nn.Module, Tensor]:
    """75 equal layers with so many parameters in all."""
    width = round((numbers / 75) ** 0.5)
    with torch.device("meta"):
        layers = [nn.Linear(width, width, bias=False) for _ in range(75)]
        return nn.Sequential(nn.Identity(), nn.Sequential(*layers)), torch.empty(1, width)


def zero_cases(rows: Iterable[tuple[float, int, dict[str, float]]] = ZERO_TABLE) -> Iterator[Case]:
    """Gigabytes of parameters, gradients and optimizer state on a device: Rajbhandari et al. 2020, table 1."""
    for numbers, devices, stages in rows:
        for strategy, expected in stages.items():
            spread = {"strategy": strategy, "devices": devices} if devices > 1 else {}
            side = plan(*_stack(numbers), dtype="bfloat16", master=True, fuse=False, **spread).before  # type: ignore[arg-type]
            assert side.states_bytes is not None
            name = f"{numbers / 1e9:g} billion parameters, {strategy} over {devices}"
            yield Case(name, expected, side.states_bytes / GB)


def state_cases() -> Iterator[Case]:
    """Bytes a parameter of a language model with Adam: 2 + 2 + 12 in half precision, 4 + 4 + 8 in float32."""
    model, tokens = language_model(MODELS["Llama 2 7B"], 2, 4096)
    numbers = sum(p.numel() for p in model.parameters())
    settings: tuple[tuple[str, dict[str, Any]], ...] = (
        ("float32", {}), ("bfloat16 with float32 masters", {"dtype": "bfloat16", "master": True}),
        ("float32 under autocast to bfloat16", {"autocast": "bfloat16"}),
    )  # fmt: skip
    for name, options in settings:
        side = plan(model, tokens, fuse=False, **options).before
        assert side.states_bytes is not None
        yield Case(f"Llama 2 7B, 2 layers, {name}", 16.0, side.states_bytes / numbers)


def language_model(shape: Shape, layers: int, length: int) -> tuple[nn.Module, Tensor]:
    """A decoder of so many layers on the meta device, and one sequence of tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        if shape.gated:
            config = LlamaConfig(
                vocab_size=shape.classes, hidden_size=shape.width, intermediate_size=shape.inner,
                num_hidden_layers=layers, num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads,
                head_dim=shape.head_width or shape.width // shape.heads, max_position_embeddings=length,
                attn_implementation="sdpa", use_cache=False,
            )  # fmt: skip
            model: nn.Module = LlamaForCausalLM(config)
        else:
            model = _gpt(shape, layers, length)
        return model, torch.empty(1, length, dtype=torch.long)


def _gpt(shape: Shape, layers: int, length: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.classes, n_embd=shape.width, n_layer=layers, n_head=shape.heads, n_positions=length,
        n_inner=shape.inner, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


@cache
def flops_per_token(name: str, length: int) -> float:
    """Model FLOPs of a training step for each token, all layers included. FLOPs are counted for 1 and 2 layers."""
    shape = MODELS[name]
    one, two = (_counted_flops(*language_model(shape, layers, length)) for layers in (1, 2))
    return (one + (two - one) * (shape.layers - 1)) / length


def _counted_flops(model: nn.Module, tokens: Tensor) -> float:
    flops = model_flops_of_original(model, tokens).model
    assert flops is not None
    return flops


def utilisation_cases() -> Iterator[Case]:
    """Model FLOP/s that follow from published tokens a second, against the FLOP/s or MFU published with them."""
    for row in THROUGHPUTS:
        planned = row.tokens_per_second * flops_per_token(row.model, row.length) / 1e12
        yield Case(
            f"{row.source}: {row.model}, s {row.length:,}, {row.tokens_per_second:,.4g} tokens/s", row.tflops, planned
        )


SECTIONS: dict[str, tuple[str, str, Callable[[], Iterable[Case]]]] = {
    "States": ("bytes a parameter", "Parameters, gradients and Adam's state of one device.", state_cases),
    "ZeRO": (
        "GB of a device", "Parameters, gradients and Adam's state in mixed precision, by ZeRO's stages "
        "(Rajbhandari et al. 2020, table 1; `fsdp` is stage 3).", zero_cases,
    ),
    "Activations": (
        "bytes of a layer", "One layer of GPT-3 and of Megatron's model of 22 billion parameters, by Korthikanti et "
        "al. 2022. The pipeline's first stage holds the activations of as many microbatches as there are stages.",
        lambda: [*activation_cases(12288, 96, 2048, 256), *activation_cases(6144, 64, 2048, 256)],
    ),
    "Model FLOPs": (
        "TFLOP/s of a device", "Published throughput times the model FLOPs that autofuse counts, against the published "
        "TFLOP/s or MFU. Only the count of FLOPs is tested: no speed is predicted. torchtitan's figures count the "
        "input embedding as a product, 5 % of the 8B model; MosaicML's count position embeddings. "
        "PyTorch's blog rounds its figures to two digits.", utilisation_cases,
    ),
}  # fmt: skip


def as_markdown(sections: dict[str, list[Case]]) -> str:
    """The page docs/plan-accuracy.md."""
    lines = [
        "# How accurate `autofuse plan` is", "",
        "`python -m benchmarks.plan_accuracy --output docs/plan-accuracy.md` writes this page. Each table compares "
        "what is planned on tensors without numbers with formulas and figures that others published. Nothing here was "
        "measured on a GPU by us. Sources are listed in `benchmarks/published_figures.py`.",
    ]  # fmt: skip
    for title, cases in sections.items():
        unit, text, _ = SECTIONS[title]
        worst = max(abs(case.error) for case in cases)
        lines += ["", f"## {title}", "", f"{text} {len(cases)} cases, largest error {worst:.1%}.", ""]
        lines += [f"| case | expected, {unit} | planned | error |", "| --- | ---: | ---: | ---: |"]
        lines += [f"| {c.name} | {c.expected:,.4g} | {c.planned:,.4g} | {c.error:+.1%} |" for c in cases]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), help="these tables")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write Markdown here")
    options = parser.parse_args(argv)
    sections = {title: list(SECTIONS[title][2]()) for title in options.only or SECTIONS}
    text = as_markdown(sections)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
