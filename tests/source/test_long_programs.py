"""Long repetition and deep nesting: the work stays within its limit of steps, and the rest of a file is read."""

import signal
import time

import pytest

from autofuse.ir.steps import limit_steps
from autofuse.loading.registry import load_rules
from autofuse.project.config import FileSettings
from autofuse.project.file_discovery import SourceFile
from autofuse.project.run import CheckedFile, RewriteResult, RewriteRun
from autofuse.source.find import file_reader as budgets
from autofuse.source.find.check import proposals
from autofuse.source.find.file_reader import SkippedFunction
from tests.source.long_programs import KINDS, program

_HANGS = 120  # seconds; only an endless loop takes so long

# Not read at a length of 64, because they need an exponential or quadratic number of steps.
_DECLINED = {"masks of views", "helpers of helpers", "calls of a long Sequential"}
_STEEP = {"views that are written"}  # every view records each write
# Read, although they need more than a linear number of steps.
_QUADRATIC = {
    "GELUs", "GELUs by tanh", "attention with a mask", "SiLUs in loops", "SiLUs of one value",
    "masks one after the other", "fills one after the other", "buffers", "SiLUs in map", "writes", "writes to parts",
    "SiLUs that are deleted", "masks that are there or not",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_hang():
    def late(*_):
        raise TimeoutError("it hangs")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(_HANGS)
    yield
    signal.alarm(0)


def read(text):
    """The proposals of a program, the skipped functions, and the number of steps."""
    skipped, rules = list[SkippedFunction](), load_rules()
    with limit_steps(10**9) as steps:
        found = proposals(text.encode(), "long.py", rules=rules, skipped=skipped)
    return found, skipped, steps.spent


def in_last(found):
    return [(p.finding.code, p.finding.status) for p in found if p.finding.symbol == "last"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_a_file_is_read_after_any_first_line(kind):
    for length in (2, 64):
        found, skipped, _ = read(program(kind, length))
        assert in_last(found) == [("AF302", "safe")]
        assert [u.error for u in skipped if u.error] == []
        assert bool(skipped) == (kind in _DECLINED and length == 64)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - _DECLINED - _STEEP))
def test_four_times_the_length_takes_about_four_times_the_steps(kind):
    (_, _, short), (_, _, long) = (read(program(kind, n)) for n in (16, 64))
    assert long <= (16 if kind in _QUADRATIC else 9) * short + 2_000


@pytest.mark.parametrize("kind", KINDS)
def test_no_length_takes_more_than_the_steps_of_the_text(kind):
    text = program(kind, 160)
    _, _, spent = read(text)
    functions = text.count("def ") + text.count("lambda") + text.count("\nx = ")
    allowed = budgets.SPARE_STEPS + (budgets.STEPS * (functions + 2)) + 2 * budgets.STEPS_PER_BYTE * len(text)
    assert spent <= allowed


def test_a_skipped_function_is_reported_with_its_line_and_reason():
    _, skipped, _ = read(program("calls of a long Sequential", 64))
    assert [(u.symbol, u.line) for u in skipped] == [("M.forward", 12)]
    assert "steps to follow" in skipped[0].why and skipped[0].error is None


def test_a_function_that_needs_too_many_steps_takes_none_from_later_functions():
    greedy = program("calls of a long Sequential", 64)
    after = "\n\ndef after{}(x):\n    x = x / 1\n    return x * torch.sigmoid(x)\n"
    text = greedy + "".join(map(after.format, range(200)))
    found, skipped, _ = read(text)
    assert len(skipped) == 1
    assert sum(p.finding.symbol.startswith("after") for p in found) == 200


def test_a_file_has_a_limit_of_steps(monkeypatch):
    monkeypatch.setattr(budgets, "FILE_STEPS", 5_000)
    found, skipped, spent = read(program("functions", 40))
    unread = sum(1 + u.others for u in skipped)
    assert 0 < len(found) < 41 and len(found) + unread == 41
    assert spent <= 5_000 + budgets.MIN_STEPS


def test_a_file_of_many_functions_is_read_up_to_its_limit_and_the_others_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(budgets, "FILE_STEPS", 20_000)
    line = "def f{}(x): return x * torch.sigmoid(x)\n"
    path = tmp_path / "many.py"
    path.write_text("import torch\n" + "".join(map(line.format, range(3_000))) + "\n\ndef end(x):\n    return x\n")
    with limit_steps(10**9) as steps:
        checked = RewriteRun().check(SourceFile(str(path), FileSettings(tmp_path), named=True))
    assert isinstance(checked, CheckedFile) and steps.spent <= 20_000 + budgets.MIN_STEPS
    read_functions = [p.finding.symbol for p in checked.proposals]
    assert read_functions == [f"f{i}" for i in range(len(read_functions))] and len(read_functions) > 10
    unread = 3_000 - len(read_functions)
    (told,) = checked.problems
    assert not told.error and told.message == (
        f"{path}:{len(read_functions) + 2}: f{len(read_functions)} and {unread - 1:,} functions after it, up to f2999, "
        "are not read: the file takes more than 20,000 steps to follow."
    )


_BLOCK = """

class Norm{0}(nn.Module):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5)


class Attention{0}(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.drop((q @ k.transpose(-2, -1) / 8**0.5).softmax(-1)) @ v
"""
_IMPORTS = "import torch\nfrom torch import nn\n"


def test_an_edit_in_a_larger_file_counts_more_steps():
    # An edit looks through its file for what may change it.
    (few, _, small), (many, _, large) = (
        read(_IMPORTS + _BLOCK.format(0) + "x = torch.relu(torch.ones(3))\n" * lines) for lines in (1, 2_000)
    )
    assert [p.finding.status for p in few] == [p.finding.status for p in many] == ["safe", "safe"]
    assert large - small > len(many) * 2_000 * 5 // 50


def test_a_file_of_many_classes_is_read_up_to_its_limit(monkeypatch):
    monkeypatch.setattr(budgets, "FILE_STEPS", 30_000)
    found, skipped, spent = read(_IMPORTS + "".join(map(_BLOCK.format, range(60))))
    assert spent <= 30_000 + budgets.MIN_STEPS and 4 < len(found) < 60
    assert skipped[-1].others > 10 and "the file takes more than 30,000 steps" in skipped[-1].why


@pytest.mark.night
def test_five_megabytes_of_classes_take_less_than_a_minute():
    text = _IMPORTS + "".join(map(_BLOCK.format, range(9_000)))
    assert len(text) > 5_000_000
    start = time.process_time()
    found, skipped, _ = read(text)
    assert found and skipped and time.process_time() - start < 60


@pytest.mark.night
def test_twenty_thousand_functions_take_a_few_seconds(tmp_path):
    line = "def f{}(q, k, v): return torch.softmax(q @ k.transpose(-2, -1), -1) @ v\n"
    path = tmp_path / "many.py"
    path.write_text("import torch\n" + "".join(map(line.format, range(20_000))))
    start = time.process_time()
    RewriteRun(declined=False).check(SourceFile(str(path), FileSettings(tmp_path), named=True))
    assert time.process_time() - start < 15


def test_a_function_of_any_length_has_a_limit_of_steps(monkeypatch):
    monkeypatch.setattr(budgets, "MAX_STEPS", 5_000)
    long = "import torch\n\n\ndef long(x):\n" + "    x = x * torch.sigmoid(x)\n" * 400 + "    return x\n\n\n"
    found, skipped, spent = read(f"{long}def last(x):\n    x = x / 1\n    return x * torch.sigmoid(x)\n")
    assert [u.symbol for u in skipped] == ["long"]
    assert in_last(found) == [("AF302", "safe")]
    assert spent < 2 * 5_000


def test_the_same_program_takes_the_same_steps():
    read(program("attention with a mask", 2))  # the first read in a process also prepares the rules
    assert len({read(program("attention with a mask", 8))[2] for _ in range(3)}) == 1


_WRONG = """import torch


def before(x):
    x = x / 1
    return x * torch.sigmoid(x)


def broken(x):
    x = x / 1
    return torch.sigmoid(x) * x


def after(x):
    x = x / 1
    return x * torch.sigmoid(x)
"""


def _raise_while_reading(monkeypatch, name="broken"):
    """Makes autofuse raise an internal error when it reads the function `name`."""
    from autofuse.source.find import check

    capture = check.capture

    def fails(function, *given):
        if function.name == name:
            raise AssertionError("a bug")
        return capture(function, *given)

    monkeypatch.setattr(check, "capture", fails)


def test_an_internal_error_skips_the_function_and_not_the_file(monkeypatch, tmp_path):
    _raise_while_reading(monkeypatch)
    path = tmp_path / "model.py"
    path.write_text(_WRONG)
    file, run = SourceFile(str(path), FileSettings(tmp_path), named=True), RewriteRun()
    checked = run.check(file)
    assert isinstance(checked, CheckedFile)
    assert [p.finding.symbol for p in checked.proposals] == ["before", "after"]
    (told,) = checked.problems
    assert told.error
    assert told.message == (
        f"internal error on {path}:9, so broken is not read: AssertionError: a bug; please report it."
    )
    result = run.rewrite(checked, file)
    assert isinstance(result, RewriteResult) and result.edits == 2
    assert result.after.count(b"silu") == 2 and b"torch.sigmoid(x) * x" in result.after


def test_debug_prints_the_traceback_of_an_internal_error(monkeypatch, tmp_path):
    _raise_while_reading(monkeypatch)
    path = tmp_path / "model.py"
    path.write_text(_WRONG)
    checked = RewriteRun(debug=True).check(SourceFile(str(path), FileSettings(tmp_path), named=True))
    assert isinstance(checked, CheckedFile) and "Traceback" in checked.problems[0].message


def test_an_internal_error_is_raised_unless_skipped_functions_are_collected(monkeypatch):
    _raise_while_reading(monkeypatch)
    with pytest.raises(AssertionError, match="a bug"):
        proposals(_WRONG.encode(), "", rules=load_rules())


def test_an_internal_error_while_an_edit_is_written_skips_only_that_edit(monkeypatch, tmp_path):
    from autofuse.project import document

    apply_edits = document.apply_edits

    def fails(program, edits, *given):
        if any(e.spans[0].line == 11 for e in edits):
            raise AssertionError("a bug")
        return apply_edits(program, edits, *given)

    monkeypatch.setattr(document, "apply_edits", fails)
    path = tmp_path / "model.py"
    path.write_text(_WRONG)
    file, run = SourceFile(str(path), FileSettings(tmp_path), named=True), RewriteRun()
    result = run.rewrite(run.check(file), file)
    assert isinstance(result, RewriteResult) and result.edits == 2
    (told,) = result.refused
    assert told.error and "AF302" in told.message and "please report it" in told.message


_NUMBERS = {
    "9 ** 9 ** 9": "x / 9 ** 9 ** 9",
    "a float that overflows": "x * 2.0 ** 100000",
    "a shift": "x * (1 << 10 ** 9)",
    "a long text": "x * len('a' * 10 ** 9)",
    "a long list": "x * len([0] * 10 ** 9)",
    "a hexadecimal number of 6,000 digits": "x * 0x" + "f" * 5000,
    "the smallest float": "x / 5e-324 * 5e-324",
    "the largest float": "x * 1e308 * 1e308",
    "infinity": "torch.clamp(x, 0, float('inf'))",
    "nan": "torch.clamp(x, float('nan'), 1)",
    "a quotient by zero": "x / 0 * 0.0",
    "a root of a negative number": "x * (-4) ** 0.5 * math.sqrt(4)",
    "a negative power of zero": "x * 0 ** -1",
}


@pytest.mark.parametrize("name", _NUMBERS)
@pytest.mark.parametrize("where", ["result", "assigned", "top", "argument", "init"])
def test_no_number_is_too_large(name, where):
    expression = _NUMBERS[name]
    constant = expression.replace("x * ", "").replace("x / ", "").replace("x, ", "1.0, ")
    text = {
        "result": f"def g(x):\n    return {expression} * torch.sigmoid(x)\n",
        "assigned": f"def g(x):\n    c = {constant}\n    return x * c * torch.sigmoid(c * x)\n",
        "top": f"C = {constant}\n\n\ndef g(x):\n    return x * C * torch.sigmoid(C * x)\n",
        "argument": f"def h(x, c={constant}):\n    return x * c\n\n\ndef g(x):\n    return h(x) * torch.sigmoid(x)\n",
        "init": "class M(torch.nn.Module):\n    def __init__(self):\n"
        f"        self.c = {constant}\n        self.register_buffer('b', torch.full((2, 2), {constant}).triu(1))\n\n"
        "    def forward(self, x):\n        return x * self.c * torch.sigmoid(x + self.b)\n",
    }[where]
    found, skipped, _ = read(
        f"import math\n\nimport torch\n\n\n{text}\n\ndef last(x):\n    x = x / 1\n    return x * torch.sigmoid(x)\n"
    )
    assert in_last(found) == [("AF302", "safe")]
    assert [u.error for u in skipped] == []
