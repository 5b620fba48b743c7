"""The release command: versions agree, archives are reproducible, and contents are checked."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.release.building import normalise
from tools.release.contents import find_problems_in_sdist, find_problems_in_wheel
from tools.release.versions import find_version_problems

REPOSITORY = Path(__file__).parents[2]


def _repository(folder: Path, version: str = "1.2.0", cited: str = "1.2.0", changes: str = "1.2.0") -> Path:
    (folder / "pyproject.toml").write_text(f'[project]\nname = "autofuse-torch"\nversion = "{version}"\n')
    (folder / "CITATION.cff").write_text(f"cff-version: 1.2.0\nversion: {cited}\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {changes} (unreleased)\n")
    return folder


def test_the_versions_of_this_repository_agree() -> None:
    assert find_version_problems(REPOSITORY) == []


def test_equal_versions_everywhere_are_not_reported(tmp_path: Path) -> None:
    assert find_version_problems(_repository(tmp_path)) == []


@pytest.mark.parametrize(
    ("versions", "words"),
    [({"cited": "1.1.0"}, "CITATION.cff states 1.1.0"), ({"changes": "1.1.0"}, "heading of CHANGELOG.md is 1.1.0")],
)
def test_another_version_is_named(tmp_path: Path, versions: dict[str, str], words: str) -> None:
    (problem,) = find_version_problems(_repository(tmp_path, **versions))
    assert words in problem


def test_a_tag_must_be_the_version_and_the_changelog_dated(tmp_path: Path) -> None:
    problems = find_version_problems(_repository(tmp_path), "v1.3.0")
    assert any("The tag is v1.3.0" in p for p in problems) and any("unreleased" in p for p in problems)


def _sdist(path: Path, names: list[str], time: int, owner: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(f"autofuse_torch-1.0/{name}")
            member.mtime, member.uname, member.size = time, owner, 3
            tar.addfile(member, io.BytesIO(b"one"))
    return path


def test_two_archives_of_the_same_files_become_equal(tmp_path: Path) -> None:
    first = _sdist(tmp_path / "a.tar.gz", ["README.md", "LICENSE"], 100, "me")
    second = _sdist(tmp_path / "b.tar.gz", ["LICENSE", "README.md"], 200, "you")
    hashes = set()
    for archive in (first, second):
        normalise(archive, 315532800)
        hashes.add(hashlib.sha256(archive.read_bytes()).hexdigest())
        with tarfile.open(archive) as tar:
            assert tar.extractfile("autofuse_torch-1.0/LICENSE").read() == b"one"  # type: ignore[union-attr]
    assert len(hashes) == 1


def test_an_sdist_with_tests_or_without_a_licence_is_a_problem(tmp_path: Path) -> None:
    complete = ["LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "autofuse/py.typed", "rules/attention.py"]
    assert find_problems_in_sdist(_sdist(tmp_path / "a.tar.gz", complete, 1, "")) == []
    wrong = _sdist(tmp_path / "b.tar.gz", [*complete[1:], "tests/test_cli.py"], 1, "")
    assert find_problems_in_sdist(wrong) == ["LICENSE is missing", "tests/test_cli.py should not be there"]


def test_a_wheel_with_a_foreign_folder_is_a_problem(tmp_path: Path) -> None:
    wheel = tmp_path / "autofuse_torch-1.0-py3-none-any.whl"
    files = [f.relative_to(REPOSITORY).as_posix() for f in (REPOSITORY / "autofuse").rglob("*.py")]
    files += [f"autofuse/rules/{f.name}" for f in (REPOSITORY / "rules").glob("*.py")]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in [*files, "autofuse/py.typed", "autofuse_torch-1.0.dist-info/licenses/LICENSE", "tests/x.py"]:
            archive.writestr(name, "")
    assert find_problems_in_wheel(wheel, REPOSITORY) == ["tests is not part of autofuse"]
