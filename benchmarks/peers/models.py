"""The models that all ways run, and a training step of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from autofuse.demo import gpt as demo
from benchmarks import no_loss
from benchmarks.models import EXAMPLES
from examples import gpt, vit

Inputs = tuple[Any, ...]
Factory = Callable[[], tuple[nn.Module, Inputs]]


def _example(name: str) -> Factory:
    """A hand-written model of examples/, at the size of benchmarks/models.py."""
    return lambda: (EXAMPLES[name].build(), EXAMPLES[name].inputs())


def _library_model() -> tuple[nn.Module, Inputs]:
    """A Llama of transformers, as its authors wrote it, with two layers of width 256."""
    model = no_loss.build_model("LlamaModel")
    return model, (no_loss.inputs_of("text", (4, 128))["input_ids"],)


def _tiny_gpt() -> tuple[nn.Module, Inputs]:
    return gpt.GPT(gpt.Config(layers=1, width=32, length=16, dropout=0.0)), (torch.randint(2, 20, (2, 16)),)


def _tiny_vit() -> tuple[nn.Module, Inputs]:
    return vit.ViT(vit.Config(depth=1, dim=32)), (torch.randn(2, 32, 32),)


def _long_gpt() -> tuple[nn.Module, Inputs]:
    """The model of `autofuse demo` at four times its length."""
    config = demo.Config(vocab_size=64, block_size=1024)
    return demo.GPT(config), (torch.randint(0, 64, (2, 1024)),)


MODELS: Mapping[str, Factory] = MappingProxyType(
    {
        "demo GPT, length 1024": _long_gpt,
        "gpt": _example("gpt"),
        "bert": _example("bert"),
        "llama": _example("llama"),
        "vit": _example("vit"),
        "Llama of transformers": _library_model,
    }
)
TINY: Mapping[str, Factory] = MappingProxyType({"tiny-gpt": _tiny_gpt, "tiny-vit": _tiny_vit})


def build(name: str) -> tuple[nn.Module, Inputs]:
    """A model in training mode with its inputs, always with the same weights.

    Args:
        name: A key of MODELS or TINY, or `package.module:function`. The function returns a model and its inputs.

    Raises:
        ValueError: There is no such model.
    """
    factory = MODELS.get(name) or TINY.get(name)
    if factory is None:
        module, colon, function = name.partition(":")
        if not colon:
            raise ValueError(f"No model is called {name}. Models: {', '.join(MODELS)}, or package.module:function.")
        factory = getattr(importlib.import_module(module), function)
    torch.manual_seed(0)
    model, inputs = factory()
    return model.train(), inputs if isinstance(inputs, tuple) else (inputs,)


def step_of(callable_model: Callable[..., Any], model: nn.Module, inputs: Inputs) -> Callable[[], None]:
    """A training step: forward, a loss of the output, backward, and AdamW, which is fused for every way."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        loss_of(callable_model(*inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loss_of(output: Any) -> Tensor:
    """The mean square of the output."""
    return first_tensor(output).float().pow(2).mean()


def first_tensor(output: Any) -> Tensor:
    """The first floating-point tensor of what a model returns."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    return next(v for v in values if isinstance(v, Tensor) and v.is_floating_point())
