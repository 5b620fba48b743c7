"""Rules are code: which rules are executed, how this is reported, and that no other code of a checked tree runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """\
import torch


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v


def own(x):
    return torch.sin(torch.exp(x))
"""
# The rule creates a file when it is executed.
RULE = '''
from __future__ import annotations
from pathlib import Path
from typing import TYPE_CHECKING
from autofuse.rule import Fused, Kept, Rule

Path({mark!r}).touch()
if TYPE_CHECKING:
    import torch


class Sines(Rule):
    """A sine of an exponential."""

    code = "MY101"

    @staticmethod
    def before(x):
        return torch.sin(torch.exp(x))

    @staticmethod
    def after(x):
        return torch.special.entr(x)

    examples = (
        Fused("as methods", before="import torch\\ndef f(x): return x.exp().sin()"),
        Kept("a cosine", "import torch\\ndef f(x): return torch.cos(torch.exp(x))"),
    )
'''
TABLE = '[tool.autofuse]\nrules = ["my_rules"]\n'
AUTOFUSE = str(Path(sys.executable).with_name("autofuse"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without settings."""
    (tmp_path / "home").mkdir()
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("AUTOFUSE_ALLOW_RULES", "PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def project(folder: Path, table: str = TABLE) -> Path:
    (folder / "my_rules").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(table)
    (folder / "my_rules" / "sines.py").write_text(RULE.format(mark=str(folder / "executed")))
    (folder / "model.py").write_text(MODEL)
    return folder


def run_in(folder: Path, *arguments: str, command: tuple[str, ...] = (AUTOFUSE,)) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def was_executed(folder: Path) -> bool:
    mark = folder / "executed"
    found = mark.exists()
    mark.unlink(missing_ok=True)
    return found


def test_the_rules_of_the_working_folders_project_are_executed_and_reported(tmp_path: Path) -> None:
    here = project(tmp_path / "here")
    (here / "sub").mkdir()
    for folder, path, name in ((here, "model.py", "my_rules/sines.py"), (here / "sub", "../model.py", "sines.py")):
        done = run_in(folder, "check", path)
        told = [line for line in done.stderr.splitlines() if "executes rules" in line]
        assert was_executed(here) and len(told) == 1 and told[0].endswith(name), done.stderr
        assert "MY101" in done.stdout and "executes" not in done.stdout


def test_the_rules_of_another_project_need_permission(tmp_path: Path, home: Path) -> None:
    (start := tmp_path / "start").mkdir()
    other = project(tmp_path / "other")
    done = run_in(start, "check", "../other")
    assert not was_executed(other)
    assert "pyproject.toml names rules, which are not executed" in done.stderr and "--allow-rules" in done.stderr
    assert done.returncode == 1 and "AF101" in done.stdout and "MY101" not in done.stdout
    allowed: list[tuple[list[str], dict[str, str], str]] = [
        (["--allow-rules"], {}, ""),
        ([], {"AUTOFUSE_ALLOW_RULES": "1"}, ""),
        ([], {"AUTOFUSE_ALLOW_RULES": str(tmp_path)}, ""),
        ([], {}, "allow-rules = true"),
        ([], {}, f'allow-rules = ["/nowhere", "{tmp_path}/other"]'),
    ]
    (home / "autofuse").mkdir()
    for options, environment, settings in allowed:
        (home / "autofuse" / "config.toml").write_text(settings)
        with pytest.MonkeyPatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            done = run_in(start, "check", *options, "../other")
        assert was_executed(other) and "MY101" in done.stdout, (options, environment, settings)
        assert "executes rules" in done.stderr and "my_rules/sines.py" in done.stderr


@pytest.mark.parametrize("value", ["0", "", "/nowhere"])
def test_the_environment_takes_precedence_over_the_users_file(tmp_path: Path, home: Path, value: str) -> None:
    other = project(tmp_path / "other")
    (home / "autofuse").mkdir()
    (home / "autofuse" / "config.toml").write_text("allow-rules = true")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AUTOFUSE_ALLOW_RULES", value)
        run_in(home, "check", "../other")
    assert not was_executed(other)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("allow-rules = 3", "must be true, false or a list of folders"),
        ('allow-rules = ["work"]', "Write an absolute path"),
        ("rules = []", "has no key `rules`"),
        ("allow-rules", "is not valid TOML"),
    ],
)
def test_invalid_settings_allow_nothing(tmp_path: Path, home: Path, settings: str, sentence: str) -> None:
    other = project(tmp_path / "other")
    (home / "autofuse").mkdir()
    (home / "autofuse" / "config.toml").write_text(settings)
    done = run_in(home, "check", "../other")
    assert done.returncode == 2 and sentence in done.stderr and not was_executed(other)


@pytest.mark.parametrize("options", [[], ["--allow-rules"]])
def test_rules_of_a_nested_project_are_not_executed_from_outside(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    nested = project(tmp_path / "vendored", TABLE + 'ignore = ["AF1"]\n')
    done = run_in(tmp_path, "check", *options, ".")
    assert not was_executed(nested)
    assert "vendored/pyproject.toml names rules, which are not executed: it is inside the project" in done.stderr
    assert done.returncode == 0 and "AF101" not in done.stdout  # the other settings of the configuration apply
    assert "MY101" in run_in(nested, "check", ".").stdout and was_executed(nested)


def test_codes_of_rules_that_are_not_executed_select_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    (tmp_path / "model.py").write_text(MODEL)
    more = 'select = ["MY"]\nignore = ["MY101"]\nper-file-ignores = {"a" = ["MY1"]}\n'
    project(tmp_path / "vendored", TABLE + more)
    done = run_in(tmp_path, "check", ".")
    assert done.returncode == 1 and done.stdout.count("AF101") == 1, done.stderr
    assert done.stdout.startswith("model.py:")


@pytest.mark.parametrize("hook", ["autofuse check --force-exclude", "autofuse rewrite --force-exclude"])
def test_the_pre_commit_hooks_need_the_same_permission(tmp_path: Path, hook: str) -> None:
    assert f"entry: {hook}\n" in (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
    here, nested = project(tmp_path / "here"), project(tmp_path / "here" / "nested")
    run_in(here, *hook.split()[1:], "model.py", "nested/model.py")
    assert was_executed(here) and not was_executed(nested)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("given", ["pyproject.toml", "my_rules", "my_rules/sines.py"])
def test_rules_of_another_user_are_not_executed(tmp_path: Path, given: str) -> None:
    here = project(tmp_path / "here")
    os.chown(here / given, 65534, 65534)
    done = run_in(here, "check", "model.py")
    assert not was_executed(here) and "belongs to another user" in done.stderr
    run_in(here, "check", "--allow-rules", "model.py")
    assert was_executed(here)
    os.chown(here, 65534, 65534)  # the folder belongs to another user, but autofuse is started there
    run_in(here, "check", "model.py")
    assert was_executed(here)


def test_rules_and_explain_need_the_same_permission(tmp_path: Path) -> None:
    here = project(tmp_path / "here")
    for arguments in (["rules"], ["explain", "MY101"], ["rules", "--check"]):
        done = run_in(here, *arguments)
        assert done.returncode == 0 and was_executed(here) and "executes rules" in done.stderr, arguments
    done = run_in(tmp_path, "rules", "--check", "here/my_rules")  # the user names the folder
    assert done.returncode == 0 and was_executed(here) and "here/my_rules/sines.py" in done.stderr


def test_optimize_loads_only_the_rules_of_the_working_folder_and_logs_them(tmp_path: Path) -> None:
    here = project(tmp_path / "here")
    nested = project(here / "nested")
    program = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from autofuse.project.project_rules import load_project_rules\n"
        "for _ in range(2): print([r.rule.code for r in load_project_rules() if not r.ships])"
    )
    done = run_in(here, program, command=(sys.executable, "-c"))
    assert done.stdout == "['MY101']\n['MY101']\n" and was_executed(here) and not was_executed(nested)
    assert done.stderr.count("executes rules") == 1


def test_a_pipe_in_the_rules_folder_is_ignored(tmp_path: Path) -> None:
    here = project(tmp_path / "here")
    os.mkfifo(here / "my_rules" / "pipe.py")
    assert "MY101" in run_in(here, "check", "model.py").stdout


def modules_of_a_run(folder: Path) -> set[str]:
    """The top-level modules that a run imports or may import."""
    program = (
        "import sys; from autofuse.cli import main; main(['check', 'model.py']); print(*sys.modules, file=sys.stderr)"
    )
    found = {name.partition(".")[0] for name in run_in(folder, program, command=(sys.executable, "-c")).stderr.split()}
    more = "torch numpy rich libcst jinja2 triton einops transformers yaml flash_attn apex liger_kernel pynvml conftest"
    return {n for n in found if n.isidentifier() and n not in ("autofuse", "__main__")} | set(more.split())


@pytest.mark.parametrize("command", [(AUTOFUSE,), (sys.executable, "-m", "autofuse")], ids=["command", "module"])
def test_no_module_of_the_working_folder_is_imported(tmp_path: Path, command: tuple[str, ...]) -> None:
    (clean := tmp_path / "clean").mkdir()
    (clean / "model.py").write_text(MODEL)
    # Python imports these before it runs a module with -m.
    names = modules_of_a_run(clean) - set(sys.builtin_module_names) - {"sitecustomize", "usercustomize"}
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in names:
        (hostile / f"{name}.py").write_text(f"open({str(hostile / 'executed')!r}, 'a').write('{name} ')\n")
    (hostile / "evil.egg-info").mkdir()
    (hostile / "evil.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (hostile / "evil.egg-info" / "entry_points.txt").write_text("[autofuse.rules]\nevil = evil\n")
    (hostile / "evil.py").write_text(f"open({str(hostile / 'executed')!r}, 'a').write('evil ')\n")
    (hostile / "sitecustomize.py").write_text(f"open({str(hostile / 'executed')!r}, 'a').write('site ')\n")
    (hostile / "evil.pth").write_text("import evil\n")
    (hostile / "model.py").write_text(MODEL)
    for arguments in (
        ["check", "."],
        ["rewrite", "--diff", "model.py"],
        ["rules"],
        ["explain", "AF101"],
        ["--version"],
    ):
        done = run_in(hostile, *arguments, command=command)
        assert done.returncode in (0, 1), done.stderr
        assert not (hostile / "executed").exists(), (arguments, (hostile / "executed").read_text())
    assert len(names) > 100


def test_a_file_with_the_name_of_an_option_is_not_an_option(tmp_path: Path) -> None:
    other = project(tmp_path / "other")
    (start := tmp_path / "start").mkdir()
    (start / "--allow-rules").write_text("#!/usr/bin/env python\n")
    done = run_in(start, "check", "--allow-rules", "../other/model.py")
    assert done.returncode == 2 and "a file here has that name" in done.stderr and not was_executed(other)
    assert run_in(start, "check", "./--allow-rules", "../other/model.py").returncode == 1
    assert run_in(start, "check", "--", "--allow-rules", "../other/model.py").returncode == 1
    assert not was_executed(other)
