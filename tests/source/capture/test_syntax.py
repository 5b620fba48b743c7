"""Every construct of Python 3.8 to 3.14 around and inside a match leads to a correct edit or a refusal, but no crash."""
# ruff: noqa: E501 (programs in a table are easier to compare)

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.loading.registry import load_rules
from autofuse.source.find.check import proposals
from autofuse.source.write.comments import comments_of
from autofuse.source.write.file_edits import lost_comments
from tests.source.rewriting import rewritten_bytes

HEAD = "import contextlib\nimport math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
FUSED = "scaled_dot_product_attention("

# The positions of the three statements of attention; `{0}` is their indentation.
ATTENTION = "{0}s = q @ k.mT  # one\n{0}w = torch.softmax(s, dim=-1)  # two\n{0}o = w @ v  # three\n"
AROUND = {
    "async def f(q, k, v):\n{a}    return o\n": "    ",
    "async def f(q, k, v):\n    await g()\n    async with c as d, e:\n{a}    async for x in y:\n        pass\n    return o\n": "        ",
    "def f(q, k, v, x):\n    match x:\n        case {{'a': 1, **rest}} if rest:\n{a}        case [_, *y] | (y):\n            o = y\n        case C(z=1):\n            return 0\n    return o\n": "            ",
    "def f(q, k, v):\n    def inner(x, /, *, y=1):\n{a}        return o\n    return inner\n": "        ",
    "def f(q, k, v):\n    class Local(nn.Module):\n        def forward(self, x):\n{a}            return o\n    return Local\n": "            ",
    "def f(q, k, v):\n    try:\n{a}        return o\n    except* (OSError, E) as e:\n        raise\n    else:\n        pass\n    finally:\n        del k\n": "        ",
    "def f(q, k, v):\n    with torch.autocast('cpu'), (yield) as x:\n{a}        return o\n": "        ",
    "if True:\n    class A(nn.Module):\n        @torch.no_grad()\n        @unknown(1)[0].of\n        def forward(self, q, k, v):\n{a}            return o\nelse:\n    A = None\n": "            ",
    "class A:\n    @staticmethod\n    def f(q, k, v):\n{a}        return o\n    g = f\n": "        ",
    "@torch.jit.script\ndef f(q: torch.Tensor, k: 'T', v):\n    # type: (Tensor, Tensor, Tensor) -> Tensor\n{a}    return o\n": "    ",
    "def f(q, k, v):\n{a}    yield o\n    x = yield from o\n": "    ",
    "def f(q, k, v):\n    global o\n{a}    return o\n": "    ",
    "def f(q, k, v):\n    o = 0\n    def g():\n        nonlocal o\n{a}    g()\n    return o\n": "        ",
    "def f(*q, k, v, **o):\n    while (n := len(q)) > 1:\n{a}    else:\n        return\n    return o\n": "        ",
    "def f(q, k, v):\n    \"\"\"Doc.\n\n    # no comment\n    \"\"\"\n    # fmt: off\n{a}    # fmt: on\n    return o   \n": "    ",
    "def f(q, k, v):\n{a}    a, *b = [*o, *o]; c: int = 1\n    a @= o; return {{**{{}}}}, [x async for x in o] if 0 else b[1:, ..., ::2]\n": "    ",
    "def f(q, k, v):\n{a}    print(f'{{o!r:>{{10}}}} {{{{}}}}' f''.strip() if 0 else '', *o, sep='', **{{}})\n    return lambda *, a=o: (yield)\n": "    ",
    "def f(q, k, v):\n{a}    assert o, 'x'; del s, w\n    return o\n": "    ",
    "def f(q, k, v):\n\tif q is k: return v\n{a}\treturn o\n": "\t",
}  # fmt: skip
SPELLED = [
    "def f(q, k, v): s = q @ k.mT; w = torch.softmax(s, -1); return w @ v\n",
    "def f(q, k, v):\n    s = w = q @ k.mT\n    return torch.softmax(w, -1) @ v\n",
    "def f(q, k, v):\n    s = q \\\n        @ k.mT\n    return torch.softmax(s, -1) \\\n        @ v\n",
    "def f(q, k, v):\n    return (  # one\n        # two\n        torch.softmax(\n            q @ k.mT,  # three\n            -1,\n        )\n        @ v  # four\n    )  # five\n",
    "def f(q, k, v):\n    if q is not None: s = q @ k.mT\n    else: s = v\n    return torch.softmax(s, -1) @ v\n",
    "def f(q, k, v):\n    s = q @ k.mT  \n\n\n    w = torch.softmax(s, -1)\t\n    return w @ v  \n",
    "def f(q, k, v): return torch.softmax(q @ k.mT, -1) @ v",
    "class A: f = staticmethod(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v)\n",
    "def f(q, k, v):\n    return [torch.softmax(a @ b.mT, -1) @ c for a, b, c in zip(q, k, v)]\n",
    "def f(q, k, v):\n    if (w := torch.softmax(q @ k.mT, -1)) is not None:\n        return w @ v\n",
    "def f(q, k, v):\n    s = q @ k.mT\n    s = torch.softmax(s, -1)\n    s @= v\n    return s\n",
    "def f(q, k, v, *, s=None):\n    o, s = torch.softmax(q @ k.mT, -1) @ v, 1\n    return o, s\n",
    "def f(q, k, v):\n    x = {'a': torch.softmax(q @ k.mT, -1) @ v, **{}}\n    return x\n",
    "def f(q, k, v):\n    return g(*[torch.softmax(q @ k.mT, -1) @ v], **{'a': 1})\n",
    "def f(q, k, v):\n    raise E(torch.softmax(q @ k.mT, -1) @ v) from None\n",
    "def f(q, k, v):\n    with torch.softmax(q @ k.mT, -1) @ v as w: pass\n    for i in torch.softmax(q @ k.mT, -1) @ v: pass\n    return w\n",
    "@decorated(torch.softmax(torch.ones(1) @ torch.ones(1).mT, -1) @ torch.ones(1))\ndef f(q=torch.ones(1)): pass\n",
]
NEWER = {
    (3, 12): [
        "type Pair[T] = tuple[T, T]\ndef f[T: int, *Ts, **P](q: T, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n",
        "def f(q, k, v):\n    print(f'{'a' + f\"{1}\"}')\n    return torch.softmax(q @ k.mT, -1) @ v\n",
    ],
    (3, 13): ["def f[T = int](q: T, k, v):\n    return torch.softmax(q @ k.mT, -1) @ v\n"],
    (3, 14): [
        "def f(q, k, v):\n    try: pass\n    except A, B: pass\n    return torch.softmax(q @ k.mT, -1) @ v\n",
        "def f(q, k, v):\n    x = t'{q}'\n    return torch.softmax(q @ k.mT, -1) @ v\n",
    ],
}


def check_rewritten(text: str, gone: tuple[str, ...] = ()) -> str:
    """Rewrite a text. The result must compile, need no more edits, and keep all comments except those in `gone`."""
    before = text.encode()
    after = rewritten_bytes(before)
    ast.parse(after)
    assert set(lost_comments(before, after)) <= set(gone)
    assert rewritten_bytes(after) == after
    return after.decode()


@pytest.mark.parametrize("around", AROUND)
def test_attention_inside_every_statement(around: str) -> None:
    text = HEAD + around.format(a=ATTENTION.format(AROUND[around]))
    after = check_rewritten(text, gone=("# one", "# two"))
    kept = [line for line in text.split("\n") if not any(c in line for c in ("# one", "# two", "# three", "del s"))]
    rest = iter(after.split("\n"))
    assert [line for line in kept if line in rest] == kept


@pytest.mark.parametrize("text", SPELLED)
def test_attention_in_every_kind_of_line(text: str) -> None:
    check_rewritten(HEAD + text)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("text", SPELLED[:4])
def test_line_ends_do_not_change(text: str, line_end: str) -> None:
    before = (HEAD + text).replace("\n", line_end).encode()
    after = rewritten_bytes(before)
    assert FUSED.encode() in after
    assert after.replace(line_end.encode(), b"").count(b"\n") == after.replace(line_end.encode(), b"").count(b"\r") == 0


def test_mixed_line_ends_do_not_change_outside_of_edits() -> None:
    before = HEAD.replace("\n", "\r\n") + SPELLED[0] + "x = 1\r\ny = '''\r\n\n'''\n"
    after = rewritten_bytes(before.encode()).decode()
    assert (
        after.startswith(HEAD.replace("\n", "\r\n"))
        and after.endswith("x = 1\r\ny = '''\r\n\n'''\n")
        and FUSED in after
    )


@pytest.mark.parametrize("version", NEWER)
def test_syntax_of_newer_versions_is_read_or_refused_with_a_reason(
    version: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in NEWER[version]:
        path = tmp_path / "new.py"
        path.write_text(HEAD + text)
        code = main(["rewrite", str(path)])
        if sys.version_info >= version:
            assert code == 0 and FUSED in path.read_text()
        else:
            assert code == 2 and path.read_text() == HEAD + text
            running = f"Python {sys.version_info.major}.{sys.version_info.minor}"
            assert f"cannot be read by {running}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["import torch\nprint 'softmax'\n", "import torch\nraise E, 'softmax'\n", "x = 0777 # torch.softmax"]
)
def test_python_2_syntax_is_reported_with_its_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.py").write_text(text)
    assert main(["check", str(tmp_path)]) == 2
    assert "old.py:" in (error := capsys.readouterr().err) and "cannot be read by Python" in error


def test_comments_are_found_as_python_finds_them() -> None:
    assert comments_of(b"x = '# no'  # yes\r\n# and\r#this\n") == [(1, "# yes"), (2, "# and"), (3, "#this")]


def deep(kind: str) -> str:
    """A function or statement that is nested more deeply than a recursive function can follow."""
    cases = [f"    {'el' if i else ''}if x == {i}:\n        return {i}\n" for i in range(700)]
    return {
        "sum in a function": "def g(a):\n    return " + " + ".join(["a"] * 900) + "\n",
        "sum at the top": "x = " + " + ".join(["a"] * 900) + "\n",
        "elif": "def g(x):\n" + "".join(cases),
        "brackets": "x = " + "[" * 90 + "]" * 90 + "\n",
        "calls": "def g(x):\n    return " + "h(" * 90 + "x" + ")" * 90 + "\n",
        "attributes": "def g(x):\n    return x" + ".a" * 900 + "\n",
        "conditions": "def g(x):\n    return " + "1 if x else " * 700 + "x\n",
        "blocks": "def g(x):\n" + "".join("    " * (i + 1) + "if x:\n" for i in range(90)) + "    " * 92 + "pass\n",
        "list": "x = [" + ", ".join(map(str, range(20_000))) + "]\n",
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["sum in a function", "sum at the top", "elif", "brackets", "calls", "attributes", "conditions", "blocks", "list"],
)
def test_deep_nesting_does_not_prevent_the_check_of_other_functions(kind: str) -> None:
    text = HEAD + deep(kind) + SPELLED[0]
    assert FUSED in check_rewritten(text)


def test_a_function_that_cannot_be_captured_is_reported() -> None:
    unread: list[object] = []
    proposals(
        (HEAD + deep("sum in a function").replace("return a", "return torch.softmax(a, -1)")).encode(),
        "x.py",
        rules=load_rules(),
        skipped=unread,
    )  # type: ignore[arg-type]
    assert [(u.symbol, u.line) for u in unread] == [("g", 8)]  # type: ignore[attr-defined]
