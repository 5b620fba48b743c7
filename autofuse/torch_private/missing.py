"""What a private name of torch is, and what stands in its place where a torch has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, NoReturn

import torch


class MissingFromTorch(AttributeError):
    """A private name of torch that was to be used and is not there; the message is a sentence."""


class _Missing(type):
    """What a name of torch's that is not there is replaced by: a class without instances.

    It can be imported, subclassed and asked about by isinstance; calling it and reading from it raise.
    """

    sentence: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise MissingFromTorch(cls.sentence)

    def __getattr__(cls, name: str) -> NoReturn:
        raise MissingFromTorch(type.__getattribute__(cls, "sentence"))


RAISES: Any = object()


@dataclass(frozen=True)
class Private:
    """One name of ours for what torch has at `paths`.

    use: what for. missing: what happens where torch has none of that, after "Without it ". fallback: what stands there
    then; by default a class that raises MissingFromTorch when it is used. make: the thing itself, out of what is found
    at the paths.
    """

    paths: tuple[str, ...]
    use: str
    missing: str
    fallback: Any = RAISES
    make: Callable[..., Any] = lambda found: found

    def found(self) -> Any:
        """What torch has. Raises what the look-up raises: AttributeError, ImportError, or what a broken part does."""
        return self.make(*map(resolve_name, self.paths))

    def instead(self, why: str) -> Any:
        """What stands there where torch has none."""
        if self.fallback is not RAISES:
            return self.fallback
        sentence = (
            f"torch {torch.__version__} has no {' or '.join(self.paths)} as autofuse knows it ({why}). It is used for "
            f"this: {self.use}. Without it {self.missing}. Use a version of torch that autofuse was tested with."
        )
        return _Missing("Missing", (), {"sentence": sentence})
