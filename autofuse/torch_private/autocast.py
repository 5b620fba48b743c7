"""Whether autocast is active, for eager calls and for Dynamo."""

from __future__ import annotations

import torch

from autofuse.torch_private import assumed_constant


@assumed_constant
def _is_available(device: str) -> bool:
    """torch.amp.is_autocast_available, at which Dynamo of torch 2.11 breaks the graph. The answer never changes."""
    return torch.amp.is_autocast_available(device)


def is_autocast_on(device: str) -> bool:
    """Whether autocast is active for this type of device. False for devices without autocast."""
    return _is_available(device) and torch.is_autocast_enabled(device)
