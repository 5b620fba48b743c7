"""The table [tool.autofuse]: where it is found, its keys and values, and its error messages."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from autofuse.project.config import ConfigError, Configuration, FileSettings


def settings(folder: Path, text: str) -> FileSettings:
    (folder / "pyproject.toml").write_text(text)
    return Configuration().settings_for(folder)


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "my_rules").mkdir()
    found = settings(
        tmp_path,
        '[tool.autofuse]\nselect = ["AF1"]\nignore = ["AF101"]\nexclude = ["vendored"]\nrules = ["my_rules/"]\n'
        'target = "torch"\n'
        '[tool.autofuse.per-file-ignores]\n"tests/*" = ["AF3"]\n',
    )
    assert found == FileSettings(
        tmp_path, ("AF1",), ("AF101",), ("vendored",), (("tests/*", ("AF3",)),), (tmp_path / "my_rules",), "torch"
    )


def test_the_nearest_file_with_the_table_is_used(tmp_path: Path) -> None:
    inner = tmp_path / "package" / "module"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.autofuse]\nignore = ["AF1"]\n')
    (tmp_path / "package" / "pyproject.toml").write_text("[project]\nname = 'autofuse-user'\n")
    assert Configuration().settings_for(inner).ignore == ("AF1",)
    (inner / "pyproject.toml").write_text("[tool.autofuse]\n")
    assert Configuration().settings_for(inner).ignore == ()


def test_a_broken_file_without_settings_for_autofuse_is_ignored(tmp_path: Path) -> None:
    assert settings(tmp_path, "this is [ not toml").select == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tool.autofuse = 3", "`tool.autofuse` must be a table"),
        ("[tool.autofuse]\nfoo = 1", "has no key `foo`. It may have `select`, `ignore`,"),
        ("[tool.autofuse]\nexclude = [1]", "`exclude` in [tool.autofuse] must be a list of strings, and is [1]."),
        ('[tool.autofuse]\nignore = [""]', "`ignore` in [tool.autofuse] must be a list of strings"),
        ('[tool.autofuse.per-file-ignores]\n"a" = "AF1"', "must be a list of strings, and is 'AF1'."),
        ('[tool.autofuse]\nrules = ["gone"]', "which is not a folder."),
        ('[tool.autofuse]\ntarget = "cudnn"', "`target` in [tool.autofuse] must be one of 'auto', 'torch', 'autofuse'"),
        ("[tool.autofuse\n", "is not valid TOML"),
    ],
)
def test_an_invalid_value_is_reported_with_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, text)
    assert str(refused.value).startswith(str(tmp_path / "pyproject.toml"))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("vendored", "vendored", True),
        ("vendored", "src/vendored/model.py", True),
        ("vendored", "src/unvendored/model.py", False),
        ("*_pb2.py", "src/model_pb2.py", True),
        ("src/old", "src/old/deep/model.py", True),
        ("src/old/", "src/old", True),
        ("src/old", "lib/src/old", False),
        ("src/*/old", "src/a/old/model.py", True),
        ("./src", "src/model.py", True),
        ("Model.py", "model.py", False),
    ],
)
def test_patterns_match_names_anywhere_and_paths_from_the_root(
    tmp_path: Path, pattern: str, path: str, matches: bool
) -> None:
    assert FileSettings(tmp_path, exclude=(pattern,)).excludes(str(tmp_path / path)) is matches
    codes = FileSettings(tmp_path, per_file_ignores=((pattern, ("AF1",)),)).ignored_in(str(tmp_path / path))
    assert codes == (("AF1",) if matches else ())


VALUES = ["torch", "", [], ["AF1"], [1], [""], {}, {"tests/*": ["AF1"]}, {"tests/*": "AF1"}, True, 3, "nowhere"]


@pytest.mark.parametrize("key", ["select", "ignore", "exclude", "per-file-ignores", "target", "no-such-key"])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_the_shipped_schema_accepts_the_values_that_autofuse_accepts(tmp_path: Path, key: str, value: object) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(files("autofuse.results").joinpath("schemas/configuration.json").read_text())
    text = json.dumps(value).replace(": ", " = ") if isinstance(value, dict) else json.dumps(value)
    (tmp_path / "pyproject.toml").write_text(f"[tool.autofuse]\n{key} = {text}\n")
    try:
        Configuration().settings_for(tmp_path)
        read = True
    except ConfigError:
        read = False
    assert jsonschema.Draft202012Validator(schema).is_valid({key: value}) == read
