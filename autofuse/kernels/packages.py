"""What computes operations and where it comes from: found without importing it, loaded once, guarded.

Knows how a package is found and got, and what is mistaken for it; must not know what is done with it. A package may be
absent, half installed, shadowed by a folder of the same name, or break when it is imported: each of these is a sentence
here, and changes nothing but the choice of a provider.
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
    """A package, or a part of it, that was to be used and cannot be; the message is a sentence."""


def _nothing() -> str:
    return ""


@dataclass(frozen=True, eq=False)
class Parts:
    """The modules that have to be found for a package to be usable: each with what it means that it is not.

    The first is the package's own top. A sentence may name `{place}`, where something of that name was found.
    """

    distribution: str
    modules: Mapping[str, str]

    def missing(self) -> str:
        """The sentence of the first module that is not found, "" where all are."""
        top = next(iter(self.modules))
        for module, sentence in self.modules.items():
            if found(module) is None:
                return sentence.format(place=_place(found(top)))
        return ""

    def version(self) -> str:
        """What the distribution's metadata say; "" where it has none, as a checkout on the path."""
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            return ""


@dataclass(frozen=True)
class Package:
    """Something that has to be there for a provider to run.

    `missing` says why it cannot be used on this machine, as a sentence, "" where it can; asking imports nothing of it.
    `install` says how it is got. `version` is that of what is installed, "" where that is not known. `parts` are what
    is looked for, where it is a package.
    """

    name: str
    missing: Callable[[], str]
    install: str
    version: Callable[[], str] = _nothing
    parts: Parts | None = None


def packaged(name: str, parts: Parts, install: str) -> Package:
    """A package of others' that is there where all of `parts` are; what was found is remembered."""
    return Package(name, cache(parts.missing), install, cache(parts.version), parts)


def found(module: str) -> ModuleSpec | None:
    """Where a module is, of any depth, without importing it or what it is part of; None where it is not.

    importlib.util.find_spec("a.b") would run a's code to learn where its parts are; its spec says that too.
    """
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    names = module.split(".")
    for depth in range(len(names)):
        spec = _on(".".join(names[: depth + 1]), path)
        if spec is None:
            return None
        path = _places(spec)
        if path is None and depth + 1 < len(names):
            return None  # a module, and not a package: it has no parts
    return spec


def _on(name: str, path: list[str] | None) -> ModuleSpec | None:
    """What the first finder finds, of editable installs as well as Python's own. One that raises finds nothing."""
    if sys.modules.get(name, sys) is None:
        return None  # how a program says that a package is not to be imported
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # a finder of somebody's, about a name that we only ask for
            continue
        if spec is not None:
            return spec
    return _bare_folder(name, path)


def _bare_folder(name: str, path: list[str] | None) -> ModuleSpec | None:
    """A folder without an __init__.py within a package: Python's finder looks its parent up among imported modules."""
    folders = [Path(place, name.rpartition(".")[2]) for place in path or ()]
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
    return spec if spec.submodule_search_locations else None


def _places(spec: ModuleSpec) -> list[str] | None:
    """The folders in which the parts of a package lie, None for what is no package."""
    return None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)


def _place(spec: ModuleSpec | None) -> str:
    if spec is None:
        return "nowhere"
    return spec.origin or ", ".join(_places(spec) or ()) or "an unknown place"


@cache
def _imported(module: str) -> ModuleType | str:
    """A module, or why it cannot be imported: what failed once is not tried again for each operation."""
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        return f"{module} cannot be imported: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next(_lines(str(error)), "it says nothing more.")


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())


def loaded(module: str) -> ModuleType:
    """A module that may be absent or broken. Raises Unavailable, whatever its import raises."""
    result = _imported(module)
    if isinstance(result, str):
        raise Unavailable(result)
    return result


# What was there, and did not do its work: by the package's name, why.
_given_up: dict[str, str] = {}
_listeners: list[Callable[[], None]] = []


def give_up(package: str, why: str) -> None:
    """From now on the package counts as missing in this process, for the reason given: a sentence."""
    _given_up.setdefault(package, why)
    for listener in _listeners:
        listener()


def on_giving_up(listener: Callable[[], None]) -> None:
    """Call `listener` whenever a package is given up."""
    _listeners.append(listener)


def _compiler_missing() -> str:
    return _given_up.get("compiled") or _no_compiler()


@cache
def _no_compiler() -> str:
    """Inductor takes $CXX, else what is called g++ or clang++."""
    named = os.environ.get("CXX", "")
    if any(shutil.which(command) for command in (named, "g++", "clang++") if command):
        return ""
    return "There is no C++ compiler: neither $CXX, g++ nor clang++ was found."


# What providers come from. Names of modules and of extensions are those of the versions in docs/kernels.md.

_TORCH = Parts("torch", {"torch": "torch is not installed."})
_TRITON = {"triton": "Triton is not installed.", "triton.language": "What is called triton at {place} is no Triton."}
_FLASH = {
    "flash_attn": "flash-attn is not installed.",
    "flash_attn.flash_attn_interface": "What is called flash_attn at {place} is not flash-attn 2.",
    "flash_attn_2_cuda": "flash-attn is half installed: its compiled part, flash_attn_2_cuda, is missing.",
}
_APEX = {
    "apex": "NVIDIA apex is not installed.",
    "apex.normalization": "What is called apex at {place} is not NVIDIA's: there is another package of that name.",
}
_COMPILED_WITHOUT = "NVIDIA apex was compiled without {extension}, which this takes."
_CUTLASS = {"cutlass": "nvidia-cutlass-dsl, which it is written in, is not installed."}
_GET_APEX = (
    "git clone https://github.com/NVIDIA/apex, and there {flags} pip install -v --no-build-isolation . "
    "(pip install with the bare name gets an unrelated package)."
)
_GET_FLASH = "pip install flash-attn --no-build-isolation (it is compiled for the torch that is there, with nvcc)."


def _apex(extension: str, module: str, flags: str) -> Package:
    """NVIDIA apex with one of its CUDA extensions, each of which is compiled on request."""
    without = _COMPILED_WITHOUT.format(extension=extension)
    parts = Parts("apex", _APEX | {module: without, extension: without})
    return packaged("apex", parts, _GET_APEX.format(flags=flags))


def _flash(install: str = _GET_FLASH, **more: str) -> Package:
    """flash-attn 2, with parts of it that not every install has."""
    parts = {module.replace("__", "."): sentence for module, sentence in more.items()}
    return packaged("flash-attn", Parts("flash-attn", _FLASH | parts), install)


_NO_TRITON_PART = "flash-attn is installed without its Triton kernels."

TORCH = packaged("torch", _TORCH, f"pip install '{TORCH_REQUIREMENT}'.")
TRITON = packaged("triton", Parts("triton", _TRITON), "pip install triton (it comes with torch's builds for CUDA).")
COMPILER = Package("compiled", _compiler_missing, "Install a C++ compiler, g++ or clang++.")
FLEX = packaged(
    "flex",
    Parts("torch", {"torch": "torch is not installed.", "torch.nn.attention.flex_attention": "This torch has none."}),
    "pip install torch, 2.5 or newer.",
)
FLASH_ATTN = _flash()
FLASH_ATTN_NORMS = _flash(flash_attn__ops__triton__layer_norm=_NO_TRITON_PART, **_TRITON)
FLASH_ATTN_ROTARY = _flash(flash_attn__ops__triton__rotary=_NO_TRITON_PART, **_TRITON)
FLASH_ATTN_LOSSES = _flash(flash_attn__ops__triton__cross_entropy=_NO_TRITON_PART, **_TRITON)
FLASH_ATTN_ACTIVATIONS = _flash(flash_attn__ops__activations="flash-attn is installed without its activations.")
FLASH_ATTN_DENSE = _flash(
    "In flash-attn's repository, at its release: cd csrc/fused_dense_lib && pip install --no-build-isolation .",
    fused_dense_lib="flash-attn's extension fused_dense_lib, which is compiled apart, is not installed.",
)
FLASH_ATTN_4 = packaged(
    "flash-attn-4",
    Parts(
        "flash-attn-4",
        {
            "flash_attn": "flash-attn-4 is not installed.",
            "flash_attn.cute": "What is called flash_attn at {place} has no part called cute: it is not flash-attn-4.",
            "flash_attn.cute.interface": "flash-attn-4 is half installed: flash_attn.cute has no interface.",
        }
        | _CUTLASS,
    ),
    "pip install --pre flash-attn-4",
)
FLASH_ATTN_3 = packaged(
    "flash-attn-3",
    Parts(
        "flash_attn_3",
        {
            "flash_attn_interface": "FlashAttention 3 is not installed.",
            "flash_attn_3": "What is called flash_attn_interface at {place} is not FlashAttention 3.",
            "flash_attn_3._C": "FlashAttention 3 is half installed: its compiled part, flash_attn_3._C, is missing.",
        },
    ),
    "In flash-attention's repository: cd hopper && python setup.py install (for Hopper, with nvcc 12.3 or newer).",
)
LIGER = packaged(
    "liger",
    Parts(
        "liger-kernel",
        {
            "liger_kernel": "liger-kernel is not installed.",
            "liger_kernel.ops": "What is called liger_kernel at {place} has no kernels: it is not liger-kernel.",
        }
        | _TRITON
        | {"packaging": "liger-kernel takes the package packaging, which is not installed."},
    ),
    "pip install liger-kernel packaging",
)
QUACK = packaged(
    "quack",
    Parts(
        "quack-kernels",
        {
            "quack": "quack-kernels is not installed.",
            "quack.rmsnorm": "What is called quack at {place} is not quack-kernels: there is another of that name.",
        }
        | _CUTLASS,
    ),
    "pip install quack-kernels",
)
APEX_NORMS = _apex("fused_layer_norm_cuda", "apex.normalization.fused_layer_norm", "APEX_CPP_EXT=1 APEX_CUDA_EXT=1")
APEX_DENSE = _apex("fused_dense_cuda", "apex.fused_dense", "APEX_CPP_EXT=1 APEX_CUDA_EXT=1")
APEX_ADAM = _apex("amp_C", "apex.optimizers.fused_adam", "APEX_CPP_EXT=1 APEX_CUDA_EXT=1")
APEX_LOSSES = _apex("xentropy_cuda", "apex.contrib.xentropy", "APEX_CPP_EXT=1 APEX_CUDA_EXT=1 APEX_XENTROPY=1")
