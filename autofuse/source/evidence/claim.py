"""The claim that an edit is safe, and the form of the questions that check it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autofuse.canonical import View
from autofuse.match.site import Site
from autofuse.rule import Fails
from autofuse.source.capture.captured import CapturedFunction
from autofuse.source.capture.scope import DefinedFunction
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.place.edits import Edit


@dataclass(frozen=True, eq=False)
class Claim:
    """The claim that an edit is safe, with everything that the questions read.

    Attributes:
        site: The site that the edit rewrites.
        edit: The change of the source text.
        captured: The capture of the function that contains the site.
        view: The canonical form of the capture.
        defined: The function, its class, and its scope.
        target: The name of the target that the edit is written for.
        files: The other files of the project; None if only one file is known.
        gives_same_edit: Returns whether another version of the function gives the same edit, and one that is as safe.
            None if that cannot be found out.
        function_text: The lines of the function before the edit; "" if they are not known.
    """

    site: Site
    edit: Edit
    captured: CapturedFunction
    view: View
    defined: DefinedFunction
    target: str
    files: ProjectFiles | None = None
    gives_same_edit: Callable[[DefinedFunction], bool] | None = None
    function_text: str = ""


@dataclass(frozen=True)
class Missing:
    """A piece of evidence that the source text does not show.

    `why` is a clause for a message: "assumes that `x` is a torch tensor".
    """

    why: str


# A question yields nothing if the evidence is complete.
Question = Callable[[Claim], Iterator[Missing | Fails]]
