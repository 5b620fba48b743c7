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


@pytest.mark.parametrize("name", ["Rule", "profile"])
def test_the_first_use_of_a_name_draws_nothing_from_pythons_generator(name: str) -> None:
    subprocess.run([sys.executable, "-c", DRAWN.format(name=name)], check=True, timeout=120)
