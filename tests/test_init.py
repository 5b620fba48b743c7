"""What `import autofuse` and its names do to a program."""

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


# Built only where they are used: Dynamo and Inductor, what draws, the profiler, and the door for files.
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


def _ran(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True).stdout


def test_the_live_door_imports_nothing_but_torch_and_what_it_runs_at_once() -> None:
    loaded = set(_ran(LOADED).split())
    assert "autofuse.fx.session.optimize" in loaded
    assert loaded & NOT_YET == set()
    assert {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) == {"autofuse", "torch"}


def test_garbage_is_collected_as_before_once_a_name_is_there() -> None:
    _ran(COLLECTION.format(name="optimize"))
    _ran("import gc\ngc.disable()\n" + COLLECTION.format(name="Rule").replace("gc.isen", "not gc.isen"))


@pytest.mark.parametrize("name", ["Rule", "optimize", "profile"])
def test_the_first_use_of_a_name_draws_nothing_from_pythons_generator(name: str) -> None:
    subprocess.run([sys.executable, "-c", DRAWN.format(name=name)], check=True, timeout=120)
