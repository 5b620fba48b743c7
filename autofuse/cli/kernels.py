"""`autofuse kernels`: lists the kernels of each operation on this machine. Without torch it lists only the packages."""

from __future__ import annotations

from argparse import Namespace

from rich.console import Console

from autofuse.kernels.available import package_entries
from autofuse.kernels.packages import TORCH, Unavailable, load_module
from autofuse.results.distribution import INSTALL_TORCH
from autofuse.results.providers import Listing

_DONE, _FAILED = 0, 2


def main(options: Namespace) -> int:
    """Prints the list to stdout. Returns 0, or 2 for an unknown operation."""
    errors = Console(stderr=True)
    try:
        listing = _listing(options.operations)
    except (Unavailable, ValueError) as error:
        errors.print(f"autofuse: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return _FAILED
    console = Console()
    if options.format == "json":
        console.file.write(listing.to_json() + "\n")
    else:
        console.print(listing)
    if TORCH.missing():
        errors.print(
            "autofuse: this list has only packages, because operations and their providers need torch, which is not "
            f"installed here. {INSTALL_TORCH}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    return _DONE


def _listing(names: list[str]) -> Listing:
    if TORCH.missing():
        return Listing(package_entries())
    load_module("autofuse.ops")  # this import defines all operations
    listing: Listing = load_module("autofuse.kernels.listing").listing(names)
    return listing
