"""The ways to run a model: each takes a model as it is written and returns what is called in its place.

A way that cannot run a model raises `NotHere` with the reason. Any other exception of a library is a reason, too.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

import autofuse

EAGER, OURS = "eager", "autofuse"
Model = Callable[..., Any]


def first_line(reason: str) -> str:
    """The first line of a reason, without folders of a machine."""
    line = next(iter(reason.splitlines()), "")
    line = re.sub(r"\s*\(/\S+\)", "", line)  # where an import failed
    return re.sub(r"\S*/(\S+)", r"\1", line).replace("|", "/")[:200].rstrip(". ")


class NotHere(Exception):
    """A way does not run this model here. The message says why."""


@dataclass(frozen=True)
class Way:
    """A way to run a model.

    Attributes:
        distribution: What pip calls it.
        prepare: The model and its inputs -> what is called in its place.
        counts_places: Whether `autofuse.report` knows what was fused.
    """

    distribution: str
    prepare: Callable[[nn.Module, tuple[Any, ...]], Model]
    counts_places: bool = False

    def version(self) -> str:
        """The installed version; "" if it is not installed."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return ""


def _eager(model: nn.Module, inputs: tuple[Any, ...]) -> Model:
    return model


def _compile(model: nn.Module, inputs: tuple[Any, ...]) -> Model:
    compiled: Model = torch.compile(model)
    return compiled


def _optimize(model: nn.Module, inputs: tuple[Any, ...]) -> Model:
    return autofuse.optimize(model, inputs)


def _optimize_and_compile(model: nn.Module, inputs: tuple[Any, ...]) -> Model:
    compiled: Model = torch.compile(autofuse.optimize(model, inputs))
    return compiled


def _liger(model: nn.Module, inputs: tuple[Any, ...]) -> Model:
    """Liger changes models of transformers by their type. It does not look into other models."""
    liger = _import("liger_kernel.transformers.monkey_patch", "liger-kernel")
    kind = getattr(getattr(model, "config", None), "model_type", "")
    if kind not in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise NotHere("the model is not in its list of models")
    # Without a head there is no loss to fuse, and its forward for models with one would fail.
    liger._apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=hasattr(model, "lm_head"))
    return model


def _thunder(model: nn.Module, inputs: tuple[Any, ...]) -> Model:
    jitted: Model = _import("thunder", "lightning-thunder").jit(model)
    return jitted


def _onnxruntime(model: nn.Module, inputs: tuple[Any, ...]) -> Model:
    wrapped: Model = _import("onnxruntime.training.ortmodule", "onnxruntime-training").ORTModule(model)
    return wrapped


def _import(module: str, distribution: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            raise NotHere(f"{distribution} is not installed") from error
        raise


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        EAGER: Way("torch", _eager),
        "torch.compile": Way("torch", _compile),
        "Liger": Way("liger-kernel", _liger),
        "Thunder": Way("lightning-thunder", _thunder),
        "ONNX Runtime": Way("onnxruntime-training", _onnxruntime),
        OURS: Way("autofuse-torch", _optimize, counts_places=True),
        "autofuse + torch.compile": Way("autofuse-torch", _optimize_and_compile, counts_places=True),
    }
)
