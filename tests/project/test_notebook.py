"""Notebooks: the findings in their cells, and the edits, which change nothing else."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.project.notebook_json import NotANotebook, code_cells, replace_source

IMPORTS = "%matplotlib inline\n!pip install 'torch'\nimport math\nimport torch\nfrom torch import nn"
CLASS = """\
class Attention(nn.Module):
    # kept é
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # too
        return torch.softmax(scores, dim=-1) @ v
"""
OUTPUT = {"output_type": "stream", "name": "stdout", "text": ["héllo </script>\n"]}


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def code(source: str | Sequence[str], **fields: object) -> dict[str, object]:
    content = lines(source) if isinstance(source, str) else source
    return {"cell_type": "code", "execution_count": 7, "metadata": {"z": 1, "a": 2}, "outputs": [OUTPUT]} | {
        "source": content,
        **fields,
    }


def notebook(*cells: dict[str, object], **metadata: object) -> dict[str, object]:
    text = {"cell_type": "markdown", "metadata": {}, "source": ["# Softmax of é\n", "torch"]}
    return {"cells": [text, *cells], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.autofuse]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_notebook(content: dict[str, object], **style: object) -> Path:
    path = Path("nb.ipynb")
    path.write_text(json.dumps(content, **{"indent": 1, "ensure_ascii": False} | style) + "\n")  # type: ignore[arg-type]
    return path


def sources(path: Path) -> list[str]:
    return ["".join(c["source"]) for c in json.loads(path.read_text())["cells"]]


@pytest.mark.parametrize(
    "style",
    [{}, {"ensure_ascii": True}, {"indent": None}, {"indent": None, "separators": (",", ":")}, {"indent": "\t"}],
)
@pytest.mark.parametrize("as_text", [False, True])
def test_only_the_source_of_the_edited_cell_changes(style: dict[str, object], as_text: bool) -> None:
    path = write_notebook(notebook(code(IMPORTS), code(CLASS if as_text else lines(CLASS)), code("x = 1")), **style)
    before = path.read_text()
    assert main(["rewrite", "nb.ipynb"]) == 0
    after = path.read_text()
    start = before.index("        scores = q @")
    assert after[:start] == before[:start]
    end = before[before.index("dim=-1) @ v") + len("dim=-1) @ v") :]
    assert after.endswith(end)
    cells = sources(path)
    fused = "def forward(self, q, k, v):\n        return nn.functional.scaled_dot_product_attention(q, k, v)\n"
    assert cells[2].endswith(fused)
    assert cells[1] == IMPORTS and json.loads(after).keys() == json.loads(before).keys()
    assert main(["rewrite", "--check", "nb.ipynb"]) == 0


def test_a_finding_names_the_cell_and_the_line_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    write_notebook(notebook(code(IMPORTS), code("%%time\n\n" + CLASS)))
    assert main(["check", "nb.ipynb"]) == 1
    assert capsys.readouterr().out.startswith("nb.ipynb:cell 3:6:9: AF101 [safe] Attention.forward: ")
    main(["check", "--format", "json", "nb.ipynb"])
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["path"], found["cell"], found["line"], found["end_line"]) == ("nb.ipynb", 3, 6, 7)
    main(["check", "--format", "github", "nb.ipynb"])
    assert capsys.readouterr().out.startswith(
        "::warning file=nb.ipynb,title=AF101 HandWrittenAttention::cell 3, line 6: "
    )


def test_a_finding_in_a_file_has_no_cell(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.py").write_text("import math\nimport torch\nfrom torch import nn\n" + CLASS)
    main(["check", "--format", "json", "model.py"])
    assert "cell" not in json.loads(capsys.readouterr().out)["findings"][0]


def test_the_diff_compares_cells(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_notebook(notebook(code(IMPORTS), code(CLASS)))
    before = path.read_bytes()
    assert main(["rewrite", "--diff", "nb.ipynb"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("--- nb.ipynb:cell 3\n+++ nb.ipynb:cell 3\n@@ ")
    assert "-        return torch.softmax(scores, dim=-1) @ v\n" in out and "outputs" not in out
    assert path.read_bytes() == before


def test_an_import_is_added_to_the_cell_that_imports_torch() -> None:
    function = "def f(x):\n    x = x / 1\n    return 0.5 * x * (1 + erf(x / math.sqrt(2)))"
    path = write_notebook(
        notebook(code("import math"), code("import os\nfrom torch import erf"), code("y = 1"), code(function))
    )
    assert main(["rewrite", "nb.ipynb"]) == 0
    cells = sources(path)
    assert cells[2] == "import os\nimport torch.nn.functional as F\nfrom torch import erf"
    assert cells[4] == "def f(x):\n    x = x / 1\n    return F.gelu(x)"
    assert cells[1] == "import math"


def test_lines_of_ipython_stay_where_they_are() -> None:
    head = "%load_ext autoreload\n%autoreload 2\n!ls -l | grep 'x\nfiles = !ls\nmath?\npip install torch\n"
    magic = "%%time\n" + CLASS + "\n%timeit Attention()\nx = (1\n% 2)\n"
    path = write_notebook(notebook(code(IMPORTS), code(head), code(magic), code("%%bash\nif [ x ]; then softmax(\nfi")))
    assert main(["rewrite", "nb.ipynb"]) == 0
    cells = sources(path)
    assert (cells[1], cells[2]) == (IMPORTS, head)
    assert cells[3].startswith("%%time\nclass Attention") and cells[3].endswith("\n%timeit Attention()\nx = (1\n% 2)\n")
    assert "scaled_dot_product_attention(q, k, v)" in cells[3]


def test_a_magic_in_a_function_may_read_every_name() -> None:
    inside = CLASS.replace("        return", "        %time print(scores)\n        return")
    path = write_notebook(notebook(code(IMPORTS), code(inside)))
    assert main(["rewrite", "nb.ipynb"]) == 0
    assert sources(path)[2] == inside


def test_a_broken_cell_is_reported_and_the_others_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    path = write_notebook(
        notebook(code(IMPORTS), code("x = 1\nprint 'old'\n"), code(CLASS), code(["\ud800"])), ensure_ascii=True
    )
    assert main(["rewrite", "nb.ipynb"]) == 2
    error = capsys.readouterr().err
    assert "nb.ipynb:cell 3:2: cannot be read by Python" in error
    assert "nb.ipynb:cell 5:1: cannot be read by Python" in error and "surrogate" in error
    assert "scaled_dot_product_attention" in sources(path)[3]


def test_comments_in_cells_switch_findings_off() -> None:
    for comment in ("# autofuse: ignore", "# autofuse: ignore[AF101]"):
        write_notebook(notebook(code(IMPORTS), code(CLASS.replace("# too", comment))))
        assert main(["check", "nb.ipynb"]) == 0
    write_notebook(notebook(code("# autofuse: ignore-file\n" + IMPORTS), code(CLASS)))
    assert main(["check", "nb.ipynb"]) == 0


def test_a_name_has_the_same_meaning_in_later_cells() -> None:
    defined = code("softmax = torch.softmax\ndef scaled(q, k):\n    return q @ k.transpose(-2, -1) / q.size(-1) ** 0.5")
    path = write_notebook(
        notebook(code(IMPORTS), defined, code("def f(q, k, v):\n    return softmax(scaled(q, k), -1) @ v"))
    )
    assert main(["rewrite", "nb.ipynb"]) == 0
    assert "scaled_dot_product_attention(q, k, v)" in sources(path)[3]


def test_format_3_is_supported() -> None:
    cell = {
        "cell_type": "code",
        "collapsed": False,
        "input": lines(f"import math, torch\nfrom torch import nn\n{CLASS}"),
    }
    content = {"metadata": {"name": ""}, "nbformat": 3, "worksheets": [{"cells": [cell | {"language": "python"}]}]}
    path = write_notebook(content)
    assert main(["rewrite", "nb.ipynb"]) == 0
    assert "scaled_dot_product_attention" in "".join(json.loads(path.read_text())["worksheets"][0]["cells"][0]["input"])


@pytest.mark.parametrize(
    "metadata",
    [{"kernelspec": {"language": "R"}}, {"language_info": {"name": "julia"}}, {"kernelspec": {"language": "python"}}],
)
def test_a_notebook_in_another_language_is_not_changed(metadata: dict[str, object]) -> None:
    write_notebook(notebook(code(IMPORTS), code(CLASS), **metadata))
    assert main(["check", "nb.ipynb"]) == (1 if "python" in str(metadata) else 0)


def test_a_cell_in_another_language_is_not_changed() -> None:
    sql = code("select softmax from torch", metadata={"vscode": {"languageId": "sql"}})
    write_notebook(notebook(code(IMPORTS), sql, code(CLASS)))
    assert main(["check", "nb.ipynb"]) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"cells": [{"torch"', "it is not valid JSON: Expecting ':' delimiter at line 1"),
        (b"", "it is not valid JSON"),
        (b"[]", "without a list of cells"),
        (b'{"cells": 3}', "without a list of cells"),
        (b'{"cells": ["\xff"]}', "a notebook must be UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_malformed_notebook_is_reported_with_exit_code_2(
    content: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("nb.ipynb").write_bytes(content)
    assert main(["check", "nb.ipynb"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nb.ipynb: not read: ") and sentence in error and "Traceback" not in error


def test_line_ends_a_byte_order_mark_and_a_missing_last_newline_stay() -> None:
    path = write_notebook(notebook(code(IMPORTS), code(CLASS)))
    content = b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n").rstrip()
    path.write_bytes(content)
    assert main(["rewrite", "nb.ipynb"]) == 0
    after = path.read_bytes()
    assert after.startswith(b"\xef\xbb\xbf{\r\n") and after.endswith(b"}") and b"\n" not in after.replace(b"\r\n", b"")
    assert b"scaled_dot_product_attention" in after


def test_a_notebook_can_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = write_notebook(notebook(code(IMPORTS), code(CLASS)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert main(["rewrite", "-", "--stdin-filename", "other.ipynb"]) == 0
    assert b"scaled_dot_product_attention" in capfdbinary.readouterr().out


def test_notebooks_in_a_folder_are_found_but_not_their_checkpoints() -> None:
    write_notebook(notebook(code(IMPORTS), code(CLASS)))
    Path(".ipynb_checkpoints").mkdir()
    Path("nb.ipynb").rename(".ipynb_checkpoints/nb.ipynb")
    assert main(["check", "."]) == 0
    Path(".ipynb_checkpoints/nb.ipynb").rename("nb.ipynb")
    assert main(["check", "."]) == 1


def test_untouched_lines_keep_their_escapes() -> None:
    text = '{"cells": [{"cell_type": "code", "source": "a = \'\\u00e9\\/\'\\u000ab = 1\\n"}]}'
    (cell,) = code_cells(text)
    assert cell.text == "a = 'é/'\nb = 1\n"
    assert replace_source(text, cell, "a = 'é/'\nb = 2\n") == text.replace("b = 1", "b = 2")


@pytest.mark.parametrize(
    "layout", ['["a\\n","b"]', '[ "a\\n" , "b" ]', '[\n   "a\\n",\n   "b"\n  ]', '["a\\n",   "b"]']
)
def test_a_list_of_lines_keeps_its_layout(layout: str) -> None:
    text = f'{{"cells": [{{"cell_type": "code", "source": {layout}}}]}}'
    (cell,) = code_cells(text)
    again = replace_source(text, cell, "a\nc\nd")
    assert "".join(json.loads(again)["cells"][0]["source"]) == "a\nc\nd"
    opening, closing = layout[: layout.index('"')], layout[layout.rindex('"') + 1 :]
    assert opening + '"a' in again and 'd"' + closing in again


def test_the_last_of_equal_keys_counts() -> None:
    (cell,) = code_cells('{"cells": [{"source": "x", "cell_type": "code", "source": "y"}]}')
    assert cell.text == "y"
    with pytest.raises(NotANotebook):
        code_cells('{"worksheets": 1}')
