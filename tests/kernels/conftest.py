"""Stand-ins for other packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from autofuse.kernels.operation import OPERATIONS
from autofuse.kernels.package_providers import PROVIDERS
from autofuse.ops import reference
from tests.kernels.standins import build, in_place_of_others


@pytest.fixture(scope="session")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of them."""
    folder = tmp_path_factory.mktemp("standins")
    build(folder)
    return folder


@pytest.fixture
def others(standins: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Uses stand-ins instead of installed packages, and the reference as formula of missing operations."""
    for name in {provider.operation for provider in PROVIDERS} - OPERATIONS.keys():
        formula = SimpleNamespace(run=getattr(reference, name, None))
        monkeypatch.setitem(OPERATIONS, name, SimpleNamespace(torch=formula))  # type: ignore[arg-type]
    with in_place_of_others(standins):
        yield
