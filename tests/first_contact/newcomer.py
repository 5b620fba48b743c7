"""A newcomer's folder, in which the steps of a page are followed word for word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.first_contact.documents import REPOSITORY, Command, Saved

_SET_BY_TESTS = (
    "PYTHONPATH", "VIRTUAL_ENV", "TRITON_INTERPRET", "AUTOFUSE_MEASURED", "OMP_NUM_THREADS", "KINETO_LOG_LEVEL",
)  # fmt: skip
FINDINGS = 1  # the exit code of `autofuse check` and of a hook when they find something
_FINDS = ("autofuse check", "pre-commit run --all-files")


@dataclass
class Newcomer:
    """A folder outside of the checkout.

    Attributes:
        folder: Where files are saved and commands are typed.
        variables: More environment variables.
        installs: Whether commands that install are followed. If not, the environment of the tests stands in its place.
    """

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    installs: bool = False

    def __post_init__(self) -> None:
        if not self.installs:
            (self.folder / ".venv").symlink_to(sys.prefix, target_is_directory=True)

    def follow(self, steps: Iterable[Saved | Command]) -> dict[str, str]:
        """Follows the steps, and returns what each command printed. A command that fails is an assertion error."""
        printed: dict[str, str] = {}
        for step in steps:
            if isinstance(step, Saved):
                (self.folder / step.name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / step.name).write_text(step.text)
            elif self.installs or not step.installs:
                printed[step.line] = self.type(step.line)
        return printed

    def type(self, line: str) -> str:
        """Types one line. `autofuse check` and a hook have to find something; every other command has to succeed."""
        done = subprocess.run(
            ["sh", "-c", line], cwd=self.folder, env=self._environment(), capture_output=True, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        expected = FINDINGS if any(words in line for words in _FINDS) else 0
        assert done.returncode == expected, f"$ {line}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _environment(self) -> dict[str, str]:
        """This environment, without what only the tests set, and with the newcomer's programs first on the PATH."""
        kept = {k: v for k, v in os.environ.items() if k not in _SET_BY_TESTS}
        path = f"{self.folder / '.venv' / 'bin'}{os.pathsep}{kept['PATH']}"
        cache = str(self.folder / "cache")
        caches = {"AUTOFUSE_CACHE_DIR": cache, "PRE_COMMIT_HOME": f"{cache}/pre-commit"}
        return {**kept, "PATH": path, "COLUMNS": "120", **caches, **self.variables}


def interpreters() -> dict[str, str]:
    """The supported versions of Python that run here, with their programs, besides that of the tests."""
    found = {}
    for minor in range(11, 15):
        name = f"python3.{minor}"
        program = shutil.which(name)
        if program and subprocess.run([program, "-c", ""], capture_output=True).returncode == 0:
            found[name] = program
    return found


def pip_variables(wheel: Path) -> dict[str, str]:
    """Variables with which pip finds this wheel as `autofuse-torch`, and the tested versions of everything else.

    A constraint that names the file would be stricter, but pip 23 cannot combine it with an extra.
    """
    constraints = wheel.parent / "constraints.txt"
    pinned = (REPOSITORY / "constraints.txt").read_text()
    constraints.write_text(f"{pinned}\nautofuse-torch=={wheel.name.split('-')[1]}\n")
    links = f"{wheel.parent} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    return {"PIP_CONSTRAINT": str(constraints), "PIP_FIND_LINKS": links, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
