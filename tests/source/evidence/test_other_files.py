"""Files of a project that may change what a class does, also if they do not import it themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofuse.loading.registry import load_rules
from autofuse.results.findings import Finding
from autofuse.source.evidence import other_files
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals

MODEL = """import math
import torch
from torch import nn


class Attention(nn.Module):
    def scores(self, q, k):
        return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))

    def forward(self, q, k, v):
        return self.scores(q, k).softmax(-1) @ v


class Other(nn.Module):
    pass
"""
OVERRIDE = "    def scores(self, q, k):\n        return q @ k.transpose(-2, -1) * 2\n"
THIRD = """from model import Attention, Other
import model

CHOSEN = Attention
BASES = {"attention": Attention}


def get(name=""):
    return Attention


def get_other():
    return Other
"""


def findings(folder: Path, **files: str) -> list[Finding]:
    paths = [folder / f"{name}.py" for name in ("model", *files)]
    for path, text in zip(paths, (MODEL, *files.values()), strict=True):
        path.write_text(text)
    project = ProjectFiles(tuple(map(str, paths)))
    found = proposals(paths[0].read_bytes(), str(paths[0]), rules=load_rules(), files=project)
    return [p.finding for p in found if p.finding.code == "AF101"]


# How a file that imports `third`, and not `model`, derives a class from Attention.
COMPUTED = (
    "import torch\nfrom third import get\nBASE = get()\n\nclass Sub(BASE):\n",
    "import torch\nfrom third import get\n\nclass Sub(get()):\n",
    "import torch\nimport third\n\nclass Sub(third.get('attention')):\n",
    "import torch\nfrom third import get\nBASE: type = get()\n\nclass Sub(BASE):\n",
    "import torch\nfrom third import get\nA, BASE = 1, get()\n\nclass Sub(BASE):\n",
    "import torch\nfrom third import BASES\n\nclass Sub(BASES['attention']):\n",
    "import torch\nimport third\nBASE = third.CHOSEN\n\nclass Sub(BASE):\n",
    "import torch\nimport third\nBASE = getattr(third, 'CHOSEN')\n\nclass Sub(BASE):\n",
    "import torch\nimport third\nfor BASE in third.BASES.values():\n  class Sub(BASE):\n",
    "import torch\nfrom third import get\nif (BASE := get()):\n  class Sub(BASE):\n",
    "import torch\nfrom third import get\n\ndef make(base):\n  class Sub(base):\n",
    "import torch\nfrom third import get\n\ndef make(base=get()):\n  class Sub(base):\n",
    "import torch\nfrom third import get\nS = type('S', (get(),), {'scores': lambda self, q, k: q})\nclass Empty:\n",
    "import torch\nfrom third import get\nBASE = get()\n\nclass Sub(\n    BASE,  # the base\n    metaclass=type,\n):\n",
)


@pytest.mark.parametrize("text", [t for t in COMPUTED if "BASE = third.CHOSEN" not in t])  # that one is resolved
def test_the_message_names_a_class_that_may_be_a_subclass(text: str, tmp_path: Path) -> None:
    """The file does not name the class, so nothing shows that the edit is wrong."""
    indented = OVERRIDE if "\n  class" not in text else OVERRIDE.replace("    ", "      ")
    (found,) = findings(tmp_path, third=THIRD, user=text + indented)
    assert found.status == "unsafe"
    assert "user.py" in found.message and "only run time knows its base class" in found.message


def test_what_such_a_file_changes_elsewhere_does_not_count(tmp_path: Path) -> None:
    text = "import torch\nfrom third import get\n\nclass Sub(get()):\n    def added(self): pass\n"
    changes = "\ndef swap(cls, f):\n    cls.forward = f\n    cls.scores = f\n"
    (found,) = findings(tmp_path, third=THIRD, user=text + changes)
    assert found.status == "safe", found.message


@pytest.mark.parametrize("text", COMPUTED)
def test_a_class_with_a_computed_base_counts_as_a_subclass(text: str, tmp_path: Path) -> None:
    indented = OVERRIDE if "\n  class" not in text else OVERRIDE.replace("    ", "      ")
    (found,) = findings(tmp_path, third=THIRD, user=text + indented)
    assert found.status != "safe", found.message


UNRELATED = (
    "import torch\nfrom third import Other\n\nclass Sub(Other):\n",
    "import torch\nfrom third import Other\n\nclass Base(Other):\n    pass\n\nclass Sub(Base, metaclass=type):\n",
    "import torch\nfrom elsewhere import get\n\nclass Sub(get()):\n",  # it does not import the model
    "import torch\nfrom third import get\nfrom typing import Generic, T\n\nclass Sub(Generic[T]):\n",
    "import torch\nfrom third import get\n\nclass Sub(torch.nn.Module):\n",
    "import torch\nfrom third import get\n\nclass Sub(Exception):\n",
)


@pytest.mark.parametrize("text", UNRELATED)
def test_a_class_with_a_known_base_does_not_count(text: str, tmp_path: Path) -> None:
    (found,) = findings(tmp_path, third=THIRD, user=text + OVERRIDE)
    assert found.status == "safe", found.message


def test_a_computed_base_that_overrides_nothing_leaves_the_edit_safe(tmp_path: Path) -> None:
    text = "import torch\nfrom third import get\nBASE = get()\n\nclass Sub(BASE):\n    def added(self): pass\n"
    (found,) = findings(tmp_path, third=THIRD, user=text)
    assert found.status == "safe", found.message


@pytest.mark.parametrize(("allowed", "status"), [(3, "safe"), (2, "unsafe")])
def test_an_edit_is_unsafe_if_too_many_files_import_its_file(
    allowed: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_files, "_MAX_PARSED", allowed)
    user = "import torch\nfrom model import Attention\n\nclass Sub(Attention):\n    pass\n"
    (found,) = findings(tmp_path, user1=user, user2=user, user3=user, other="class Sub(Attention):\n    pass\n")
    assert found.status == status, found.message
    assert ("user3.py, one of too many files to read" in found.message) is (status == "unsafe")


def test_an_edit_is_unsafe_if_too_many_files_may_compute_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_files, "_MAX_CONFIRMED", 1)
    user = "import torch\nfrom elsewhere import get\n\nclass Sub(get()):\n    pass\n"
    (found,) = findings(tmp_path, user1=user, user2=user)
    assert found.status == "unsafe" and "user2.py" in found.message
