"""Runs a function when any code imports a module, so that autofuse need not import it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

Then = Callable[[ModuleType], None]


def when_imported(module: str, then: Then) -> None:
    """Calls `then(module)` now if it is imported, otherwise right after its import. Imports nothing itself."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        then(loaded)
        return
    hook = next((f for f in sys.meta_path if isinstance(f, _ImportHook) and f.module == module), None)
    if hook is None:
        hook = _ImportHook(module)
        sys.meta_path.insert(0, hook)  # the first finder that answers decides
    hook.thens.append(then)


class _ImportHook(MetaPathFinder):
    """A finder for one module, which runs functions after its import. It removes itself once the module is imported."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.thens: list[Then] = []
        self._searching = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.module or self._searching:
            return None
        self._searching = True  # find_spec asks all finders, and this one must leave the answer to the others
        try:
            spec = find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ReportingLoader(spec.loader, self)
        return spec

    def loaded(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for then in self.thens:
            then(module)


class _ReportingLoader(Loader):
    """A loader that reports when its module is loaded, and restores the module's own loader."""

    def __init__(self, loader: Loader, hook: _ImportHook) -> None:
        self._loader, self._waiting = loader, hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Restored before the module's code runs, because the code may look at its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._waiting.loaded(module)
