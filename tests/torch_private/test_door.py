"""autofuse uses private names of torch through autofuse/torch_private/ only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofuse.torch_private.attributes import ATTRIBUTES
from autofuse.torch_private.names import NAMES
from tests.test_boundary import ALLOWED

REPOSITORY = Path(__file__).parents[2]

# Underscored names that are others': Python's, a package's, or words of our own languages.
NOT_TORCHS = frozenset(
    """_getframe _lru_cache_wrapper _reconstruct _replace _fields _lru_list_elem _active_collector _compiler_ctx
    _autofuse_twin _depth _value_ _attn_implementation""".split()
)
_PRIVATE_PATH = re.compile(r"\btorch(?:\.\w+)*\._[a-z]\w*", re.IGNORECASE)


def _below(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _files() -> list[Path]:
    return [f for folder in ALLOWED if folder != "torch_private" for f in _below(REPOSITORY / "autofuse" / folder)]


def private_uses(tree: ast.Module) -> Iterator[str]:
    """Private names of torch that a file uses: imported, read as an attribute, in a getattr, or in a text."""
    own = set(_own(tree))
    texts = _docstrings(tree)
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and (n.module or "").split(".")[0] == "torch":
            yield from (f"{n.module}.{a.name}" for a in n.names if "._" in f"{n.module}.{a.name}")
        elif isinstance(n, ast.Import):
            yield from (a.name for a in n.names if _PRIVATE_PATH.match(a.name))
        elif isinstance(n, ast.Attribute) and _is_private(n.attr) and n.attr not in own:
            if n.attr not in ATTRIBUTES or ast.unparse(n).startswith("torch."):
                yield ast.unparse(n)
        elif isinstance(n, ast.Call) and ast.unparse(n.func) in ("getattr", "hasattr", "setattr", "delattr"):
            asked = n.args[1].value if isinstance(n.args[1], ast.Constant) else ""
            if isinstance(asked, str) and _is_private(asked) and asked not in own and asked not in ATTRIBUTES:
                yield ast.unparse(n)
        elif isinstance(n, ast.Constant) and isinstance(n.value, str) and n not in texts:
            yield from _PRIVATE_PATH.findall(n.value)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NOT_TORCHS


def _own(tree: ast.Module) -> Iterator[str]:
    """Names that the file defines."""
    for n in ast.walk(tree):
        if isinstance(n, ast.FunctionDef | ast.ClassDef):
            yield n.name
        elif isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and ast.unparse(n.value) in ("self", "cls"):
            yield n.attr
        elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            yield n.id


def _docstrings(tree: ast.Module) -> set[ast.AST]:
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}


@pytest.mark.parametrize("file", _files(), ids=lambda f: str(f.relative_to(REPOSITORY / "autofuse")))
def test_a_file_uses_private_names_of_torch_through_torch_private_only(file: Path) -> None:
    assert list(private_uses(ast.parse(file.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "from torch._dynamo import utils", "from torch.utils import _pytree", "import torch._inductor",
        "torch._C._is_any_autocast_enabled()", "dist.distributed_c10d._get_default_store()",
        'getattr(torch.cpu, "_is_amx_tile_supported")', 'loaded("torch._inductor.config")',
        "from torch._ops import OpOverload",
        "torch.ops.aten._softmax(x, -1, False)", "function._handles", 'import_module("torch.utils._pytree")',
    ],
)  # fmt: skip
def test_the_search_finds_every_use_of_a_private_name(code: str) -> None:
    assert list(private_uses(ast.parse(code)))


def test_every_listed_name_is_used() -> None:
    text = "\n".join(f.read_text() for f in _files())
    assert [name for name in (*NAMES, *ATTRIBUTES) if not re.search(rf"\b{name}\b", text)] == []
