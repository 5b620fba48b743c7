"""`autofuse kernels`: what operations can be computed by on this machine. Works without torch, and says so.

Knows options and how to write; must not know how anything is found out.
"""

from __future__ import annotations

from argparse import Namespace

from rich.console import Console

from autofuse.kernels.available import package_entries
from autofuse.kernels.packages import TORCH, Unavailable, loaded
from autofuse.results.providers import Listing

_DONE, _FAILED = 0, 2


def main(options: Namespace) -> int:
    """Lists to stdout. Returns 0, or 2 for an operation that does not exist."""
    aside = Console(stderr=True)
    try:
        found = _listing(options.operations)
    except (Unavailable, ValueError) as error:
        aside.print(f"autofuse: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return _FAILED
    console = Console()
    if options.format == "json":
        console.file.write(found.to_json() + "\n")
    else:
        console.print(found)
    if TORCH.missing():
        aside.print(
            "autofuse: the operations and their providers need torch, which is not installed here: these are the "
            "packages alone. Install it with `pip install 'torch>=2.6'`.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    return _DONE


def _listing(names: list[str]) -> Listing:
    if TORCH.missing():
        return Listing(package_entries())
    loaded("autofuse.ops")  # what operations there are is known once all are defined
    found: Listing = loaded("autofuse.kernels.listing").listing(names)
    return found
