"""Stand-ins for other packages: built from their recorded signatures, with bodies in plain torch."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autofuse.kernels import package_functions as borrowed
from autofuse.kernels import packages

SIGNATURES = Path(__file__).parent / "signatures"
RECORDED: dict[str, Any] = {
    facts["distribution"]: facts
    for facts in (json.loads(file.read_text(encoding="utf-8")) for file in sorted(SIGNATURES.glob("*.json")))
}
# What is compiled or comes from elsewhere, and is looked for.
_OTHERS = (
    "flash_attn_2_cuda", "fused_dense_lib", "fused_layer_norm_cuda", "fused_dense_cuda", "xentropy_cuda", "amp_C",
    "cutlass", "flash_attn_3._C",
)  # fmt: skip
_IMPORTS = "import torch\nfrom tests.kernels import standin_bodies as bodies, standin_habits as habits\n\n"
_FUNCTION = """
def {name}({takes}):
    return bodies.BODIES[{path!r}](dict(locals()))
"""
_AUTOGRAD = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {takes}):
        named = {{k: v for k, v in locals().items() if k != "ctx"}}
        return habits.forward(ctx, bodies.BODIES[{path!r}], {path!r}, named)

    @staticmethod
    def backward(ctx, *gradients):
        return habits.backward(ctx, *gradients)
"""


def build(folder: Path, *distributions: str) -> None:
    """Writes the packages below `folder`, all recorded ones by default."""
    for distribution in distributions or RECORDED:
        facts = RECORDED[distribution]
        for module, is_there in facts["modules"].items():
            if is_there:
                _package(folder, module)
        for path, function in facts["functions"].items():
            module, _, name = path.rpartition(".")
            text = (_AUTOGRAD if function["autograd"] else _FUNCTION).format(name=name, path=path, **function)
            file = _package(folder, module)
            file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")
    for module in _OTHERS:
        _package(folder, module)


def _package(folder: Path, module: str) -> Path:
    """Each module is a package in its parent, except that flash-attn-4 has no top-level package."""
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        file = folder.joinpath(*names[:depth], "__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(_IMPORTS, encoding="utf-8")
    return folder.joinpath(*names, "__init__.py")


@contextmanager
def in_place_of_others(folder: Path) -> Iterator[None]:
    """Puts the packages below `folder` before all others of the same names, and removes all traces afterwards."""
    tops = {p.name for p in folder.iterdir()}
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}
    _forget(tops)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget(tops)
        sys.modules.update(before)


def _forget(tops: set[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]
    for remembered in (borrowed._function, packages._import, *_answers()):
        remembered.cache_clear()


def _answers() -> Iterator[Any]:
    """The caches of whether packages are available."""
    for value in vars(packages).values():
        if isinstance(value, packages.Package) and value.parts is not None:
            yield value.missing
            yield value.version
