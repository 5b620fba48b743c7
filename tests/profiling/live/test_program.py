"""Programs run as python would run them."""

import pickle
import sys
from pathlib import Path

import pytest

from autofuse.profiling.live.program import NoProgram, module, script


def test_a_script_is_main_with_its_arguments_and_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "beside.py").write_text("answer = 42\n")
    file = tmp_path / "train.py"
    file.write_text(
        "import sys, pickle, beside\n"
        "class Config: pass\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[1:], beside.answer, type(pickle.loads(pickle.dumps(Config()))).__module__, __spec__)\n"
    )
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    with script(str(file), ["--lr", "1"]).in_place() as run:
        run()
        assert pickle.dumps(sys.modules["__main__"].Config)  # its classes are still there
        assert sys.argv == [str(file), "--lr", "1"]
    assert capsys.readouterr().out == "['--lr', '1'] 42 __main__ None\n"
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    sys.modules.pop("beside")


def test_a_module_and_a_package_run_as_with_m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    package = tmp_path / "af_package_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("x = 1\n")
    (package / "__main__.py").write_text("import sys\nfrom .other import x\nprint(__name__, x, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    for name in ("af_package_of_a_test", "af_package_of_a_test.__main__"):
        with module(name, ["a"]).in_place() as run:
            run()
    assert capsys.readouterr().out == "__main__ 1 ['a']\n" * 2


def test_a_file_that_is_not_a_program_is_reported(tmp_path: Path):
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ndef\n")
    for path, said in ((tmp_path, "is a folder"), (tmp_path / "no.py", "cannot be read"), (broken, "broken.py:2: ")):
        with pytest.raises(NoProgram, match=said):
            script(str(path), [])
    with pytest.raises(NoProgram, match=r"No module named 'af_no_such\.thing'"):
        module("af_no_such.thing", [])
