"""Modules that torch puts around a user's: FSDP1, DDP, checkpoint wrappers, torch.compile.

They add nothing to what is computed, and a component to the names below them that is not the user's. Knows them by
what they hold, so that torch.distributed need not be imported.
"""

from __future__ import annotations

from typing import Any

from torch import nn

FSDP1 = "FullyShardedDataParallel"
_HELD_AS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module")


def held(module: nn.Module) -> str:
    """Under which name a wrapper has the user's module; "" for anything else."""
    inside = module.__dict__.get("_modules", {})
    if len(inside) != 1 or not type(module).__module__.startswith("torch."):
        return ""
    name = next(iter(inside))
    return name if name in _HELD_AS and isinstance(inside[name], nn.Module) else ""


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's module inside all wrappers. Raises TypeError for what is not a module."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"autofuse takes a torch.nn.Module, and was given a {type(module).__name__}. Pass the model itself."
        )
    while name := held(module):
        module = module._modules[name]  # type: ignore[assignment]
    return module


def user_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of a model that is not wrapped itself, with the names that its user knows them by; itself first."""
    return [(user_name(model, name), module) for name, module in model.named_modules()]


def user_name(model: nn.Module, name: str) -> str:
    """A name below `model` without what wrappers add to it: "blocks.0.attention"."""
    kept: list[str] = []
    module: Any = model
    for part in filter(None, name.split(".")):
        if held(module) != part:
            kept.append(part)
        module = module._modules[part]
    return ".".join(kept)


class PassThrough(nn.Module):
    """What stands for a wrapper where a model is read: it calls what it holds, and does nothing besides."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (inside,) = self._modules.values()
        assert inside is not None
        return inside(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            (inside,) = self.__dict__["_modules"].values()
            return getattr(inside, name)

    def __getitem__(self, key: Any) -> Any:
        (inside,) = self._modules.values()
        return inside[key]  # type: ignore[index]
