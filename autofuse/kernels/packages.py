"""The packages from which providers come: found without importing them, imported once, with errors caught.

A package may be missing, half installed, shadowed by a folder of the same name, or fail at import. Each case is a
sentence here, and affects nothing but the choice of a provider.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from autofuse.results.distribution import TORCH_REQUIREMENT


class Unavailable(Exception):
    """A package, or a part of it, that is required but not usable. The message is a sentence."""


def _empty_text() -> str:
    return ""


@dataclass(frozen=True, eq=False)
class Parts:
    """The modules that a package needs to be usable, each with the sentence for the case that it is missing.

    The first one is the package itself. A sentence may contain `{place}`, where something of that name was found.
    """

    distribution: str
    modules: Mapping[str, str]

    def missing(self) -> str:
        """The sentence of the first module that is missing; "" if all are there."""
        top = next(iter(self.modules))
        for module, sentence in self.modules.items():
            if find_module(module) is None:
                return sentence.format(place=_place(find_module(top)))
        return ""

    def version(self) -> str:
        """The version from the distribution's metadata; "" if there are none, as for a checkout on the path."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return ""


@dataclass(frozen=True)
class Package:
    """A package, or another thing, that a provider needs to run.

    Attributes:
        name: the name of the package.
        missing: returns why it is not usable on this machine, as a sentence; "" if it is. It imports no part of the
            package.
        install: how to install it.
        version: returns the installed version; "" if it is unknown.
        parts: the modules that are looked for, if it is a package.
    """

    name: str
    missing: Callable[[], str]
    install: str
    version: Callable[[], str] = _empty_text
    parts: Parts | None = None


def define_package(name: str, parts: Parts, install: str) -> Package:
    """A third-party package that is usable if all of `parts` are found. The result is cached."""
    return Package(name, cache(parts.missing), install, cache(parts.version), parts)


def find_module(module: str) -> ModuleSpec | None:
    """The spec of a module at any depth, without importing it or its parents; None if there is none.

    importlib.util.find_spec("a.b") would run a's code to learn where its parts are. a's spec says so too.
    """
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    names = module.split(".")
    for depth in range(len(names)):
        spec = _find(".".join(names[: depth + 1]), path)
        if spec is None:
            return None
        path = _folders(spec)
        if path is None and depth + 1 < len(names):
            return None  # a plain module has no parts
    return spec


def _find(name: str, path: list[str] | None) -> ModuleSpec | None:
    """The spec from the first finder, editable installs included. A finder that raises an error finds nothing."""
    if sys.modules.get(name, sys) is None:
        return None  # None in sys.modules blocks the import of a package
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # another library's finder may fail for a name that we only look up
            continue
        if spec is not None:
            return spec
    return _bare_folder(name, path)


def _bare_folder(name: str, path: list[str] | None) -> ModuleSpec | None:
    """A folder without an __init__.py in a package. Python's finder would look up its parent among imported modules."""
    folders = [Path(place, name.rpartition(".")[2]) for place in path or ()]
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
    return spec if spec.submodule_search_locations else None


def _folders(spec: ModuleSpec) -> list[str] | None:
    """The folders that contain the parts of a package; None for a plain module."""
    return None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)


def _place(spec: ModuleSpec | None) -> str:
    if spec is None:
        return "nowhere"
    return spec.origin or ", ".join(_folders(spec) or ()) or "an unknown place"


@cache
def _import(module: str) -> ModuleType | str:
    """A module, or the reason why its import fails. A failed import is not repeated for each operation."""
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        return f"{module} cannot be imported: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next(_lines(str(error)), "the error has no message.")


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())


def load_module(module: str) -> ModuleType:
    """A module that may be missing or broken.

    Raises:
        Unavailable: whatever error the import raises.
    """
    result = _import(module)
    if isinstance(result, str):
        raise Unavailable(result)
    return result


# Packages that are installed but failed, with the reason.
_given_up: dict[str, str] = {}
_listeners: list[Callable[[], None]] = []


def give_up(package: str, why: str) -> None:
    """Makes the package count as missing in this process. `why` is the reason, a sentence."""
    _given_up.setdefault(package, why)
    for listener in _listeners:
        listener()


def on_giving_up(listener: Callable[[], None]) -> None:
    """Registers a listener for `give_up`."""
    _listeners.append(listener)


def _compiler_missing() -> str:
    return _given_up.get("compiled") or _no_compiler()


@cache
def _no_compiler() -> str:
    """The reason why there is no C++ compiler. Inductor uses $CXX, otherwise g++ or clang++."""
    from_environment = os.environ.get("CXX", "")
    if any(shutil.which(command) for command in (from_environment, "g++", "clang++") if command):
        return ""
    return "There is no C++ compiler: $CXX, g++ and clang++ were not found."


# The packages. Names of modules and extensions are those of the versions in docs/kernels.md.

_TORCH = Parts("torch", {"torch": "torch is not installed."})
_TRITON = {"triton": "Triton is not installed.", "triton.language": "The package triton at {place} is not Triton."}
_FLASH = {
    "flash_attn": "flash-attn is not installed.",
    "flash_attn.flash_attn_interface": "The package flash_attn at {place} is not flash-attn 2.",
    "flash_attn_2_cuda": "flash-attn is half installed: its compiled part, flash_attn_2_cuda, is missing.",
}
_APEX = {
    "apex": "NVIDIA apex is not installed.",
    "apex.normalization": "The package apex at {place} is not NVIDIA's: there is another package of that name.",
}
_COMPILED_WITHOUT = "NVIDIA apex was compiled without {extension}, which this provider needs."
_CUTLASS = {"cutlass": "nvidia-cutlass-dsl, which it needs, is not installed."}
_GET_APEX = (
    "git clone https://github.com/NVIDIA/apex, and there {flags} pip install -v --no-build-isolation . "
    "(pip install with the bare name gets an unrelated package)."
)
_GET_FLASH = "pip install flash-attn --no-build-isolation (nvcc compiles it for the installed torch)."


def _apex(extension: str, module: str, flags: str) -> Package:
    """NVIDIA apex with one of its CUDA extensions, each of which must be compiled explicitly."""
    without = _COMPILED_WITHOUT.format(extension=extension)
    parts = Parts("apex", _APEX | {module: without, extension: without})
    return define_package("apex", parts, _GET_APEX.format(flags=flags))


def _flash(install: str = _GET_FLASH, **more: str) -> Package:
    """flash-attn 2 with parts that not every installation has."""
    parts = {module.replace("__", "."): sentence for module, sentence in more.items()}
    return define_package("flash-attn", Parts("flash-attn", _FLASH | parts), install)


_NO_TRITON_PART = "flash-attn is installed without its Triton kernels."

TORCH = define_package("torch", _TORCH, f"pip install '{TORCH_REQUIREMENT}'.")
TRITON = define_package(
    "triton", Parts("triton", _TRITON), "pip install triton (it comes with torch's builds for CUDA)."
)
COMPILER = Package("compiled", _compiler_missing, "Install a C++ compiler, g++ or clang++.")
FLEX = define_package(
    "flex",
    Parts(
        "torch",
        {"torch": "torch is not installed.", "torch.nn.attention.flex_attention": "torch has no FlexAttention."},
    ),
    "pip install torch, 2.5 or newer.",
)
FLASH_ATTN = _flash()
FLASH_ATTN_NORMS = _flash(flash_attn__ops__triton__layer_norm=_NO_TRITON_PART, **_TRITON)
FLASH_ATTN_ROTARY = _flash(flash_attn__ops__triton__rotary=_NO_TRITON_PART, **_TRITON)
FLASH_ATTN_LOSSES = _flash(flash_attn__ops__triton__cross_entropy=_NO_TRITON_PART, **_TRITON)
FLASH_ATTN_ACTIVATIONS = _flash(flash_attn__ops__activations="flash-attn is installed without its activations.")
FLASH_ATTN_DENSE = _flash(
    "In flash-attn's repository, at its release: cd csrc/fused_dense_lib && pip install --no-build-isolation .",
    fused_dense_lib="flash-attn's extension fused_dense_lib, which is compiled separately, is not installed.",
)
FLASH_ATTN_4 = define_package(
    "flash-attn-4",
    Parts(
        "flash-attn-4",
        {
            "flash_attn": "flash-attn-4 is not installed.",
            "flash_attn.cute": "The package flash_attn at {place} has no part cute: it is not flash-attn-4.",
            "flash_attn.cute.interface": "flash-attn-4 is half installed: flash_attn.cute has no interface.",
        }
        | _CUTLASS,
    ),
    "pip install --pre flash-attn-4",
)
FLASH_ATTN_3 = define_package(
    "flash-attn-3",
    Parts(
        "flash_attn_3",
        {
            "flash_attn_interface": "FlashAttention 3 is not installed.",
            "flash_attn_3": "The package flash_attn_interface at {place} is not FlashAttention 3.",
            "flash_attn_3._C": "FlashAttention 3 is half installed: its compiled part, flash_attn_3._C, is missing.",
        },
    ),
    "In flash-attention's repository: cd hopper && python setup.py install (for Hopper, with nvcc 12.3 or newer).",
)
LIGER = define_package(
    "liger",
    Parts(
        "liger-kernel",
        {
            "liger_kernel": "liger-kernel is not installed.",
            "liger_kernel.ops": "The package liger_kernel at {place} has no kernels: it is not liger-kernel.",
        }
        | _TRITON
        | {"packaging": "liger-kernel needs the package packaging, which is not installed."},
    ),
    "pip install liger-kernel packaging",
)
QUACK = define_package(
    "quack",
    Parts(
        "quack-kernels",
        {
            "quack": "quack-kernels is not installed.",
            "quack.rmsnorm": "The package quack at {place} is not quack-kernels: another package has that name.",
        }
        | _CUTLASS,
    ),
    "pip install quack-kernels",
)
APEX_NORMS = _apex("fused_layer_norm_cuda", "apex.normalization.fused_layer_norm", "APEX_CPP_EXT=1 APEX_CUDA_EXT=1")
APEX_DENSE = _apex("fused_dense_cuda", "apex.fused_dense", "APEX_CPP_EXT=1 APEX_CUDA_EXT=1")
APEX_ADAM = _apex("amp_C", "apex.optimizers.fused_adam", "APEX_CPP_EXT=1 APEX_CUDA_EXT=1")
APEX_LOSSES = _apex("xentropy_cuda", "apex.contrib.xentropy", "APEX_CPP_EXT=1 APEX_CUDA_EXT=1 APEX_XENTROPY=1")
