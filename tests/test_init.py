"""The effects of `import autofuse` and of its names on a program."""

from __future__ import annotations

import subprocess
import sys

import pytest

DRAWN = """\
import random
import autofuse
random.seed(0)
before = random.getstate()
autofuse.{name}
assert random.getstate() == before
"""


# Imported only when they are used: Dynamo and Inductor, drawing, the profiler, and the codemod.
NOT_YET = {
    "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "torch.utils.flop_counter",
    "autofuse.profiling", "autofuse.source", "autofuse.project", "autofuse.loading.registry", "autofuse.integrations",
}  # fmt: skip
LOADED = """\
import sys
import torch
before = set(sys.modules)
import autofuse
autofuse.optimize
print(*sorted(set(sys.modules) - before))
"""
COLLECTION = """\
import gc
import autofuse
autofuse.{name}
assert gc.isenabled()
"""


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True).stdout


def test_optimize_imports_only_torch_and_what_it_needs_at_once() -> None:
    loaded = set(_run(LOADED).split())
    assert "autofuse.fx.session.optimize" in loaded
    assert loaded & NOT_YET == set()
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"autofuse", "torch"}


def test_garbage_collection_is_restored_after_an_import() -> None:
    _run(COLLECTION.format(name="optimize"))
    _run("import gc\ngc.disable()\n" + COLLECTION.format(name="Rule").replace("gc.isen", "not gc.isen"))


@pytest.mark.parametrize("name", ["Rule", "optimize", "profile"])
def test_the_first_use_of_a_name_draws_no_random_numbers(name: str) -> None:
    subprocess.run([sys.executable, "-c", DRAWN.format(name=name)], check=True, timeout=120)
