"""Recognises the modules that torch puts around a user's module: FSDP1, DDP, checkpoint wrappers, torch.compile.

They do not change what is computed, but add a component to the names of the modules below them. They are recognised by
their attributes, so torch.distributed need not be imported.
"""

from __future__ import annotations

from typing import Any

from torch import nn

FSDP1 = "FullyShardedDataParallel"
_WRAPPED_NAMES = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module")


def wrapped_name(module: nn.Module) -> str:
    """Returns the attribute in which a wrapper holds the user's module, or "" for any other module."""
    inside = module.__dict__.get("_modules", {})
    if len(inside) != 1 or not type(module).__module__.startswith("torch."):
        return ""
    name = next(iter(inside))
    return name if name in _WRAPPED_NAMES and isinstance(inside[name], nn.Module) else ""


def unwrap(module: nn.Module) -> nn.Module:
    """Returns the user's module inside all wrappers.

    Raises:
        TypeError: `module` is not a module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"autofuse takes a torch.nn.Module, but got type {type(module).__name__}. Pass the model itself."
        )
    while name := wrapped_name(module):
        module = module._modules[name]  # type: ignore[assignment]
    return module


def user_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns the modules of an unwrapped model, itself first, with their names without wrappers."""
    return [(user_name(model, name), module) for name, module in model.named_modules()]


def user_name(model: nn.Module, name: str) -> str:
    """Returns the name of a module below `model` without the components that wrappers add: "blocks.0.attention"."""
    components: list[str] = []
    module: Any = model
    for part in filter(None, name.split(".")):
        if wrapped_name(module) != part:
            components.append(part)
        module = module._modules[part]
    return ".".join(components)


class PassThrough(nn.Module):
    """Replaces a wrapper in a twin. It only calls the module that it holds."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped module."""
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
