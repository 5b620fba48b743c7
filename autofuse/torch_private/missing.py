"""A private name of torch, and its replacement if a version of torch lacks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, NoReturn

import torch


class MissingFromTorch(AttributeError):
    """A private name of torch that is required but missing. The message is a sentence."""


class _Missing(type):
    """The replacement for a missing name: a class without instances.

    It can be imported, subclassed and used in isinstance. Calling it or reading from it raises an error.
    """

    sentence: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingFromTorch(cls.sentence)

    def __getattr__(cls, name: str) -> NoReturn:
        raise MissingFromTorch(type.__getattribute__(cls, "sentence"))


RAISES: Any = object()


@dataclass(frozen=True)
class Private:
    """A name of autofuse for the objects at `paths` in torch.

    Attributes:
        paths: the paths in torch.
        use: what autofuse uses it for.
        missing: what happens if it is missing, as the end of a sentence that begins with "Without it".
        fallback: the replacement; by default a class that raises MissingFromTorch when it is used.
        make: makes the object from what is found at the paths.
    """

    paths: tuple[str, ...]
    use: str
    missing: str
    fallback: Any = RAISES
    make: Callable[..., Any] = lambda found: found

    def resolve(self) -> Any:
        """The objects that torch has at the paths.

        This raises whatever the look-up raises: AttributeError, ImportError, or the error of a broken part.
        """
        return self.make(*map(resolve_name, self.paths))

    def replacement(self, why: str) -> Any:
        """The replacement. `why` is the error of the look-up."""
        if self.fallback is not RAISES:
            return self.fallback
        sentence = (
            f"torch {torch.__version__} has no {' or '.join(self.paths)} that autofuse can use ({why}). autofuse uses "
            f"it for: {self.use}. Without it {self.missing}. Use a version of torch that autofuse was tested with."
        )
        return _Missing("Missing", (), {"sentence": sentence})
