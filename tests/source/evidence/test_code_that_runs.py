"""Which code will run: an edit is made only if every given file shows that the code that was read is the code that
runs.

Programs run before and after the edit. If something changes a name that the edit reads, no result may differ. If the
change has no effect, or is made to another class, the edit stays safe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from autofuse.loading.registry import load_rules
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals
from autofuse.source.find.proposal import Proposal
from autofuse.source.write.file_edits import apply_proposals
from tests.source.evidence.changed_programs import HEAD, PARTS, Part, fits
from tests.source.evidence.ways_of_change import WAYS, Way

CASES = [(part, way) for part in PARTS for way in WAYS if fits(part, way)]
SAFE = "safe", "unsafe"


def name_of(value: object) -> str:
    return str(value.name) if isinstance(value, (Part, Way)) else ""


@pytest.fixture(autouse=True)
def remove_modules() -> Iterator[None]:
    yield
    for name in ("model", "other"):
        sys.modules.pop(name, None)


def write_files(folder: Path, part: Part, way: Way, value: str) -> list[Path]:
    """Write the files of a program; the first is the one to edit."""
    text = way.text.format(name=part.read, value=value)
    files = {"model.py": HEAD + part.base + ("" if way.outside else "\n\n" + text)}
    if way.outside:
        files["other.py"] = HEAD + "import model\n" + text
    for name, content in files.items():
        (folder / name).write_text(content)
    return [folder / name for name in files]


def all_proposals(files: list[Path], target: str) -> list[Proposal]:
    given = ProjectFiles(tuple(map(str, files)))
    return proposals(files[0].read_bytes(), str(files[0]), rules=load_rules(), target=target, files=given)


def rewrite(files: list[Path], target: str) -> bool:
    """Make every edit, safe or not; return whether the first file changes."""
    changed = False
    for _ in range(4):
        made = [
            p
            for p in all_proposals(files, target)
            if p.edit is not None and p.finding.status in SAFE and not p.waits_for
        ]
        if not made:
            return changed
        files[0].write_bytes(apply_proposals(files[0].read_bytes(), made))
        changed = True
    return changed


def result(files: list[Path], made: str, inputs: str) -> list[torch.Tensor]:
    """The results of the program and its gradients."""
    for path in files:
        module = ModuleType(path.stem)
        sys.modules[path.stem] = module
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    torch.manual_seed(0)
    model = eval(made, module.__dict__).double()
    given = [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in eval(f"[{inputs}]")]
    output = model(*given)
    grads = torch.autograd.grad(output.square().sum(), given, allow_unused=True)
    return [output, *(g for g in grads if g is not None)]


def assert_same(before: list[torch.Tensor], after: list[torch.Tensor]) -> None:
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


# By convention, an attribute named eps is a number. The rules for norms rely on that.
BY_CONVENTION = {("the eps of a norm", "setattr with a name that is given")}


@pytest.mark.parametrize(
    ("part", "way"), [(p, w) for p, w in CASES if (p.name, w.name) not in BY_CONVENTION], ids=name_of
)
def test_a_changed_program_computes_the_same_after_the_edits(part: Part, way: Way, tmp_path: Path) -> None:
    files = write_files(tmp_path, part, way, part.other)
    before = result(files, way.made, part.inputs)
    declined = [p.finding for p in all_proposals(files, part.target) if p.finding.status == "declined"]
    rewrite(files, part.target)
    assert_same(before, result(files, way.made, part.inputs))
    if way.name != "a global statement rebinds it":  # such a name is unknown, so no rule matches
        assert all(f.reason_code in ("other-code-runs", "value-returned") for f in declined)


@pytest.mark.parametrize("part", PARTS, ids=name_of)
def test_without_a_change_the_edit_is_made_and_names_what_it_reads(part: Part, tmp_path: Path) -> None:
    files = write_files(tmp_path, part, WAYS[0], part.same)
    files[0].write_text(HEAD + part.base)
    edits = [p.finding for p in all_proposals(files, part.target) if p.edit is not None]
    assert edits and all(f.status == "safe" or part.target != "torch" for f in edits), edits
    if part.kind in ("child", "method", "helper"):
        assert any(f"`self.{part.read}` as the " in f.message or f"{part.read}` as the" in f.message for f in edits)
    before = result(files, "Base()", part.inputs)
    assert rewrite(files, part.target)
    assert_same(before, result(files, "Base()", part.inputs))


SAME = [(p, w) for p, w in CASES if p.same and p.kind in ("child", "attribute") and "hook" not in w.name]
STAYS = [(p, w) for p, w in SAME if "{value}" in w.text and w.name not in (
    "a subclass has it as a property", "every child of a kind is replaced",
    "every child of a kind that is given is replaced",
    "another file replaces every child of a kind that is given", "setattr with a name that is given",
    "a mixin assigns it", "mock gives the class another",
) and "Own" not in p.same]  # fmt: skip


@pytest.mark.parametrize(("part", "way"), STAYS, ids=name_of)
def test_the_edit_stays_safe_if_the_change_has_no_effect(part: Part, way: Way, tmp_path: Path) -> None:
    files = write_files(tmp_path, part, way, part.same)
    before = result(files, way.made, part.inputs)
    edits = [p.finding for p in all_proposals(files, part.target) if p.edit is not None]
    assert edits and all(f.status == "safe" or part.target != "torch" for f in edits)
    assert rewrite(files, part.target)
    assert_same(before, result(files, way.made, part.inputs))
