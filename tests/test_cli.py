"""The command line: options, exit codes, output, and written files."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from autofuse.cli import main

ATTENTION = """\
import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        return F.softmax(scores, dim=-1) @ v
"""
# The text does not show that x is floating-point, which torch's SiLU requires.
NORM = """\
import torch


def norm(x):
    return x * torch.sigmoid(x)
"""
RETURNED = """\
import torch


def attend(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights
"""
PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
BROKEN = "import torch\n\ndef f(:\n    return x.softmax(-1) @ v\n"
FIELDS = [
    *("code", "rule", "path", "line", "end_line", "column", "symbol", "status"),
    *("message", "reason", "advice", "value", "value_line", "mask", "reason_code"),
]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder without a configuration."""
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def file(name: str, text: str | bytes) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def configure(text: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.autofuse]\n{text}\n")


def give_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def findings(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["version", "findings"]
    assert printed["version"] == 1
    return list(printed["findings"])


# rewrite


def test_rewrite_writes_a_safe_edit_in_place() -> None:
    path = file("model.py", ATTENTION)
    assert main(["rewrite", "model.py"]) == 0
    assert "F.scaled_dot_product_attention(q, k, v)" in path.read_text()
    assert "softmax" not in path.read_text()


def test_rewriting_twice_changes_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    path = file("model.py", ATTENTION)
    main(["rewrite", "model.py"])
    once = path.read_bytes()
    assert main(["rewrite", "model.py"]) == 0
    assert path.read_bytes() == once
    assert "nothing to rewrite" in capsys.readouterr().err


def test_rewrite_leaves_a_file_without_findings_untouched() -> None:
    path = file("plain.py", "import torch\r\nx  =  1\t\r\n")
    before = path.stat()
    assert main(["rewrite", "."]) == 0
    assert path.read_bytes() == b"import torch\r\nx  =  1\t\r\n"
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_diff_shows_a_patch_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    path = file("model.py", ATTENTION)
    assert main(["rewrite", "--diff", "model.py"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("--- model.py\n+++ model.py\n@@ ")
    assert "+        return F.scaled_dot_product_attention(q, k, v)\n" in out
    assert path.read_text() == ATTENTION


@pytest.mark.parametrize("text", [ATTENTION, ATTENTION.rstrip(), ATTENTION.replace("\n", "\r\n"), "\ufeff" + ATTENTION])
def test_the_diff_is_what_patch_would_apply(text: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = file("model.py", text)
    main(["rewrite", "--diff", "model.py"])
    patch = capfdbinary.readouterr().out
    subprocess.run(["git", "apply", "-p0", "--unidiff-zero", "-"], input=patch, check=True)
    patched = path.read_bytes()
    path.write_text(text, newline="")
    main(["rewrite", "model.py"])
    assert patched == path.read_bytes() != text.encode()


def test_check_option_writes_nothing_and_exits_1_if_it_would() -> None:
    path = file("model.py", ATTENTION)
    assert main(["rewrite", "--check", "model.py"]) == 1
    assert path.read_text() == ATTENTION
    main(["rewrite", "model.py"])
    assert main(["rewrite", "--check", "model.py"]) == 0


def test_check_and_diff_together_show_and_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    path = file("model.py", ATTENTION)
    assert main(["rewrite", "--check", "--diff", "model.py"]) == 1
    assert "+++ model.py" in capsys.readouterr().out
    assert path.read_text() == ATTENTION


def test_an_unsafe_edit_is_made_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    path = file("norm.py", NORM)
    assert main(["rewrite", "norm.py"]) == 0
    assert path.read_text() == NORM
    assert "1 unsafe edit left out (--unsafe includes them)" in capsys.readouterr().err
    assert main(["rewrite", "--unsafe", "norm.py"]) == 0
    assert "silu(" in path.read_text()


def test_a_rewritten_file_keeps_its_mode() -> None:
    path = file("model.py", ATTENTION)
    path.chmod(0o754)
    main(["rewrite", "model.py"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o754


def test_a_link_stays_a_link_and_its_target_is_rewritten() -> None:
    target = file("real/model.py", ATTENTION)
    Path("link.py").symlink_to(target)
    assert main(["rewrite", "link.py"]) == 0
    assert Path("link.py").is_symlink()
    assert "scaled_dot_product_attention" in target.read_text()
    assert os.listdir("real") == ["model.py"]


def test_a_file_that_cannot_be_written_is_reported_and_the_run_continues(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = file("a.py", ATTENTION), file("b.py", ATTENTION)
    real = os.replace

    def full_for_a(source: str, target: str) -> None:
        if target.endswith("a.py"):
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full_for_a)
    assert main(["rewrite", "."]) == 2
    assert first.read_text() == ATTENTION
    assert "scaled_dot_product_attention" in second.read_text()
    assert "a.py: cannot be written: No space left on device." in capsys.readouterr().err
    assert sorted(os.listdir(".")) == ["a.py", "b.py", "pyproject.toml"]


def test_the_autofuse_target_calls_the_run_time_operations() -> None:
    path = file("model.py", ATTENTION)
    assert main(["rewrite", "--target", "autofuse", "model.py"]) == 0
    assert "ops.attention(" in path.read_text() or "scaled_dot_product_attention(" in path.read_text()


# standard input


def test_stdin_is_rewritten_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    give_stdin(monkeypatch, ATTENTION.replace("\n", "\r\n").encode())
    assert main(["rewrite", "-"]) == 0
    out = capfdbinary.readouterr().out
    assert b"F.scaled_dot_product_attention(q, k, v)\r\n" in out
    assert b"\n" not in out.replace(b"\r\n", b"")


def test_stdin_without_findings_is_printed_unchanged(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    give_stdin(monkeypatch, b"x = '\xc3\xa9'\r\n\x0c")
    assert main(["rewrite", "-"]) == 0
    assert capfdbinary.readouterr().out == b"x = '\xc3\xa9'\r\n\x0c"


def test_stdin_can_be_checked_and_diffed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    give_stdin(monkeypatch, ATTENTION.encode())
    assert main(["rewrite", "--check", "-"]) == 1
    assert capsys.readouterr().out == ""
    give_stdin(monkeypatch, ATTENTION.encode())
    assert main(["rewrite", "--diff", "-", "--stdin-filename", "src/model.py"]) == 0
    assert capsys.readouterr().out.startswith("--- src/model.py\n")
    give_stdin(monkeypatch, ATTENTION.encode())
    assert main(["check", "-"]) == 1
    assert capsys.readouterr().out.startswith("<stdin>:")


def test_a_syntax_error_on_stdin_writes_nothing_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_stdin(monkeypatch, BROKEN.encode())
    assert main(["rewrite", "-"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"<stdin>:3: cannot be read by {PYTHON}: invalid syntax.\n"


def test_the_name_of_stdin_finds_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    configure('per-file-ignores = {"legacy/*" = ["AF1"]}')
    give_stdin(monkeypatch, ATTENTION.encode())
    assert main(["check", "-", "--stdin-filename", "legacy/model.py"]) == 0


def test_stdin_cannot_be_combined_with_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", "-", "model.py"]) == 2
    assert "cannot be combined with files" in capsys.readouterr().err


# check


def test_check_exits_1_with_findings_and_0_without(capsys: pytest.CaptureFixture[str]) -> None:
    file("model.py", ATTENTION)
    assert main(["check", "model.py"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("model.py:")
    assert "AF101 [safe] Attention.forward:" in printed.out
    assert printed.err == "1 finding: 1 safe\n"
    file("model.py", "x = 1\n")
    assert main(["check", "model.py"]) == 0
    assert capsys.readouterr().err == "nothing found\n"


def test_the_json_is_one_object_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    file("src/model.py", ATTENTION)
    assert main(["check", "--format", "json", "src"]) == 1
    (found,) = findings(capsys)
    assert list(found) == FIELDS
    assert (found["code"], found["path"], found["symbol"], found["status"]) == (
        "AF101", "src/model.py", "Attention.forward", "safe",
    )  # fmt: skip
    assert (found["line"], found["end_line"]) == (10, 11)
    assert all(isinstance(found[name], str) for name in ("rule", "message", "reason"))
    assert isinstance(found["column"], int)


def test_the_json_of_no_findings_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    file("model.py", "x = 1\n")
    assert main(["check", "--format", "json", "model.py"]) == 0
    assert findings(capsys) == []


def test_declined_sites_are_reported_only_on_request_and_are_not_findings(capsys: pytest.CaptureFixture[str]) -> None:
    file("model.py", RETURNED)
    assert main(["check", "--format", "json", "model.py"]) == 0
    assert findings(capsys) == []
    assert main(["check", "--format", "json", "--declined", "model.py"]) == 0
    (found,) = [f for f in findings(capsys) if f["code"] == "AF101"]
    assert found["status"] == "declined"
    assert found["reason"]


def test_the_github_format_annotates_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    file("model.py", ATTENTION)
    assert main(["check", "--format", "github", "model.py"]) == 1
    assert capsys.readouterr().out.startswith("::warning file=model.py,line=10,endLine=11,")


def test_select_and_ignore_take_prefixes() -> None:
    file("model.py", ATTENTION)
    assert main(["check", "--select", "AF101", "model.py"]) == 1
    assert main(["check", "--select", "af1", "model.py"]) == 1
    assert main(["check", "--select", "AF2", "--select", "AF101", "model.py"]) == 1
    assert main(["check", "--select", "AF201,AF202", "model.py"]) == 0
    assert main(["check", "--ignore", "AF1", "model.py"]) == 0
    assert main(["check", "--select", "AF1", "--ignore", "AF101", "model.py"]) == 0


def test_an_unknown_code_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    file("model.py", ATTENTION)
    assert main(["check", "--select", "AF1O1", "model.py"]) == 2
    assert "No rule has the code 'AF1O1'" in capsys.readouterr().err
    assert main(["rewrite", "--ignore", "X", "model.py"]) == 2
    assert Path("model.py").read_text() == ATTENTION


# errors of inputs


@pytest.mark.parametrize("paths", [["."], ["bad.py", "good.py"]])
def test_a_syntax_error_names_file_and_line_and_the_run_continues(
    paths: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file("bad.py", BROKEN)
    good = file("good.py", ATTENTION)
    assert main(["rewrite", *paths]) == 2
    assert f"bad.py:3: cannot be read by {PYTHON}: invalid syntax." in capsys.readouterr().err
    assert "scaled_dot_product_attention" in good.read_text()


def test_a_named_file_is_read_even_if_it_never_mentions_torch(capsys: pytest.CaptureFixture[str]) -> None:
    file("bad.py", "def f(:\n")
    assert main(["check", "bad.py"]) == 2
    assert "bad.py:1:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"import torch\nx = '\xff'\n", "(unicode error) 'utf-8' codec can't decode byte"),
        (b"import torch\n\0\n", "null bytes"),
        (b"# coding: nonsense\nimport torch\n", "nonsense"),
        (b"import torch\nx = " + b"(" * 500 + b")" * 500 + b"\n", "too many nested parentheses"),
        (b"import torch\nx = " + b"-" * 100_000 + b"1\n", "not read:"),
    ],
)
def test_a_file_that_is_not_python_is_reported_in_a_sentence(
    content: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file("bad.py", content + b"x.softmax(-1) @ v\n")
    file("good.py", ATTENTION)
    assert main(["check", "."]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "bad.py" in printed.err
    assert "Traceback" not in printed.err
    assert "good.py" in printed.out


def test_a_missing_path_is_reported_and_the_run_continues(capsys: pytest.CaptureFixture[str]) -> None:
    file("good.py", ATTENTION)
    assert main(["check", "nowhere", "good.py"]) == 2
    printed = capsys.readouterr()
    assert "nowhere: there is no such file or folder. Check the path." in printed.err
    assert "good.py" in printed.out


def test_a_folder_without_python_is_reported_and_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    file("docs/readme.md", "hello")
    assert main(["check", "docs"]) == 0
    assert "docs: there are no Python files to read in this folder." in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    file("secret.py", ATTENTION).chmod(0)
    assert main(["check", "secret.py"]) == 2
    assert "secret.py: cannot be read: Permission denied." in capsys.readouterr().err


def test_an_internal_error_names_the_file_and_the_run_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import autofuse.project.run as run

    real = run.proposals

    def stumbles(source: bytes, path: str, **options: object) -> object:
        if path == "a.py":
            raise KeyError("surprise")
        return real(source, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "proposals", stumbles)
    file("a.py", ATTENTION)
    file("b.py", ATTENTION)
    assert main(["rewrite", "a.py", "b.py"]) == 2
    error = capsys.readouterr().err
    assert "internal error on a.py: KeyError: 'surprise'; please report it" in error
    assert "Traceback" not in error
    assert "scaled_dot_product_attention" in Path("b.py").read_text()
    main(["rewrite", "--debug", "a.py"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["check"], ["rewrite"], ["frobnicate"], ["check", "--format", "xml", "."]])
def test_a_usage_error_exits_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


def test_a_closed_output_pipe_is_not_an_error() -> None:
    file("model.py", ATTENTION)
    command = f"{sys.executable} -m autofuse check model.py | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)


# configuration and suppressions


def test_the_configuration_selects_ignores_and_excludes() -> None:
    file("src/model.py", ATTENTION)
    configure('ignore = ["AF1"]')
    assert main(["check", "."]) == 0
    configure('select = ["AF2"]')
    assert main(["check", "."]) == 0
    assert main(["check", "--select", "AF1", "."]) == 1
    configure('exclude = ["src"]')
    assert main(["check", "."]) == 0
    assert main(["check", "src/model.py"]) == 1
    assert main(["check", "--force-exclude", "src/model.py"]) == 0
    configure('per-file-ignores = {"src/*" = ["AF1"]}')
    assert main(["check", "src/model.py"]) == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('slect = ["AF1"]', "has no key `slect`. Did you mean `select`?"),
        ('select = "AF1"', "`select` in [tool.autofuse] must be a list of strings, and is 'AF1'."),
        ('per-file-ignores = ["AF1"]', "must map patterns to lists of codes"),
        ('per-file-ignores = {"a.py" = ["ZZ9"]}', "No rule has the code 'ZZ9'"),
        ('select = ["AF999"]', "No rule has the code 'AF999'"),
        ('rules = ["nowhere"]', "which is not a folder"),
        ("select = [", "is not valid TOML"),
    ],
)
def test_an_invalid_configuration_is_reported_in_a_sentence_and_nothing_is_written(
    text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file("model.py", ATTENTION)
    configure(text)
    assert main(["rewrite", "."]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert path.read_text() == ATTENTION


@pytest.mark.parametrize(
    "comment", ["# autofuse: ignore", "# autofuse: ignore[AF101]", "# why; autofuse: ignore[AF2,AF1]"]
)
@pytest.mark.parametrize("line", [10, 11])
def test_a_comment_on_any_line_of_the_finding_switches_it_off(comment: str, line: int) -> None:
    lines = ATTENTION.splitlines()
    lines[line - 1] += f"  {comment.replace('# why; ', '# ')}"
    path = file("model.py", "\n".join(lines) + "\n")
    assert main(["check", "model.py"]) == 0
    assert main(["rewrite", "model.py"]) == 0
    assert "softmax" in path.read_text()


@pytest.mark.parametrize(
    "addition",
    [
        "# autofuse: ignore[AF2]\n",
        "# autofuse: ignore\n",
        "'# autofuse: ignore-file'\n",
        "# autofuse: ignore-file[AF3]\n",
    ],
)
def test_a_comment_elsewhere_or_for_another_rule_switches_nothing_off(addition: str) -> None:
    file("model.py", addition + ATTENTION)
    assert main(["check", "model.py"]) == 1


@pytest.mark.parametrize("comment", ["# autofuse: ignore-file", "# autofuse: ignore-file[AF101]"])
def test_a_file_can_switch_itself_off(comment: str) -> None:
    file("model.py", f"{ATTENTION}\n{comment}\n")
    assert main(["check", "model.py"]) == 0


# explain, rules, demo, version


def test_explain_shows_both_sides_of_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "af101"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("AF101 ")
    assert "def before(" in out
    assert "ops.attention(" in out


def test_explain_accepts_families_and_rejects_unknown_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "AF2"]) == 0
    out = capsys.readouterr().out
    assert "AF201 " in out and "AF202 " in out and "AF101 " not in out
    assert main(["explain", "AF1000"]) == 2
    assert "No rule has the code 'AF1000'" in capsys.readouterr().err


def test_rules_lists_every_rule_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    codes = [code for code, _ in lines]
    assert len({name for _, name in lines}) == len(lines)
    assert codes == sorted(codes)
    assert {"AF101", "AF201", "AF202", "AF203", "AF301", "AF302", "AF303", "AF304"} <= set(codes)
    assert main(["rules", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [rule["code"] for rule in listed["rules"]] == codes
    assert all(rule["title"] and rule["before"] and rule["after"] for rule in listed["rules"])


def test_the_demo_says_what_to_install_if_torch_is_missing() -> None:
    code = "import sys; sys.modules['torch'] = None; from autofuse.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'torch>=2.9'" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_is_printed_quickly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("autofuse 0.")
    code = (
        "import sys, time; from autofuse.cli import main; main(['--version']);"
        "print({'libcst', 'rich', 'jinja2', 'torch', 'ast'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_colours_are_for_terminals_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file("model.py", ATTENTION)
    main(["check", "model.py"])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["rewrite", "--diff", "model.py"])
    assert "\x1b[" in capsys.readouterr().out
