"""An edit that is about to be offered, and the questions that it has to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autofuse.canonical import View
from autofuse.match.site import Site
from autofuse.rule import Fails
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.scope import Defined
from autofuse.source.place.edits import Edit


@dataclass(frozen=True, eq=False)
class Claim:
    """An edit, the site that it makes, and the function that the site stands in."""

    site: Site
    edit: Edit
    captured: CapturedFunction
    view: View
    defined: Defined  # the function, its class, and the scope that it sees
    target: str


@dataclass(frozen=True)
class Missing:
    """A piece of evidence that the text does not give. `why` is a clause: "assumes that `x` is a torch tensor"."""

    why: str


Question = Callable[[Claim], Iterator[Missing | Fails]]
