"""Doing something once a module is imported, whoever imports it: what it costs is paid by those who use it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

Then = Callable[[ModuleType], None]


def when_imported(module: str, then: Then) -> None:
    """Call `then(module)` now where it is imported, else right after it is. Imports nothing itself."""
    there = sys.modules.get(module)
    if there is not None:
        then(there)
        return
    waiting = next((f for f in sys.meta_path if isinstance(f, _Waiting) and f.module == module), None)
    if waiting is None:
        waiting = _Waiting(module)
        sys.meta_path.insert(0, waiting)
    waiting.thens.append(then)


class _Waiting(MetaPathFinder):
    """Finds the one module as Python would, and what is to be done after it. Gone once the module is there."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.thens: list[Then] = []
        self._searching = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.module or self._searching:
            return None
        self._searching = True
        try:
            spec = find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Followed(spec.loader, self)
        return spec

    def there(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for then in self.thens:
            then(module)


class _Followed(Loader):
    """A loader that says when its module is there, and leaves the module with the loader that it is of."""

    def __init__(self, loader: Loader, waiting: _Waiting) -> None:
        self._loader, self._waiting = loader, waiting

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._waiting.there(module)
