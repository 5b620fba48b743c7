"""The classes that an expression may name, within a file and from file to file."""

import ast
from pathlib import Path

import pytest

from autofuse.source.capture.scope import FileScope, file_scope
from autofuse.source.evidence.class_names import classes_named

MODEL = "class Base:\n    pass\n"
MIDDLE = "import model\nfrom model import Base as Renamed\nAssigned = model.Base\n"
STAR = "from middle import *\n"


def scope_of(folder: Path, text: str) -> FileScope:
    for name, content in {"model": MODEL, "middle": MIDDLE, "star": STAR, "user": text}.items():
        (folder / f"{name}.py").write_text(content)
    return file_scope(ast.parse(text), folder / "user.py")


def names(folder: Path, text: str, expression: str) -> set[str]:
    """`file:name` of each class, `?` for any class, `name` for a class whose file is not known."""
    named = classes_named(scope_of(folder, text), ast.parse(expression, mode="eval").body)
    return {"?" if c is None else f"{Path(c.file).stem}:{c.name}" if c.line else c.name for c in named}


IN_ONE_FILE = {
    "class A: pass": ("A", {"user:A"}),
    "class A: pass\nB = C = A": ("B", {"user:A"}),
    "class A: pass\nB, C = A, 1": ("B", {"user:A"}),
    "class A: pass\nB = A if A else None": ("B", {"user:A"}),
    "class A: pass\nclass N:\n    base = A": ("N.base", {"user:A"}),
    "class A: pass\nBASES = [A]": ("BASES[0]", {"?"}),
    "class A: pass\nfor B in [A]: pass": ("B", {"?"}),
    "def get(): return int": ("get()", {"?"}),
    "class A: pass\nT = 1": ("A[T]", {"user:A"}),
    "import torch": ("torch.nn.Module", set()),
    "import collections": ("collections.namedtuple('P', 'a')", set()),
    "from elsewhere import with_meta\nclass A: pass": ("with_meta(A)", {"user:A"}),
    "from elsewhere import Far": ("Far", {"Far"}),
    "": ("object", set()),
}


@pytest.mark.parametrize("text", IN_ONE_FILE)
def test_a_name_is_followed_within_a_file(text: str, tmp_path: Path) -> None:
    expression, expected = IN_ONE_FILE[text]
    assert names(tmp_path, text, expression) == expected


FROM_FILE_TO_FILE = (
    "from model import Base as B", "import model\nB = model.Base", "from middle import Renamed as B",
    "from middle import Assigned as B", "import middle\nB = middle.model.Base", "from star import Renamed as B",
    "import star\nB = star.Assigned", "import importlib\nB = importlib.import_module('model').Base",
    "from middle import model as m\nB = m.Base", "B = __import__('middle').Renamed",
    "import sys\nB = sys.modules['model'].Base",
)  # fmt: skip


@pytest.mark.parametrize("text", FROM_FILE_TO_FILE)
def test_a_name_is_followed_from_file_to_file(text: str, tmp_path: Path) -> None:
    assert names(tmp_path, text, "B") == {"model:Base"}


def test_names_that_refer_to_each_other_end(tmp_path: Path) -> None:
    assert names(tmp_path, "A = B\nB = A", "A") == {"?"}
