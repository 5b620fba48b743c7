"""Options of profile end where the script begins."""

from pathlib import Path

import pytest

from autofuse.cli.arguments import parser


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("train.py", ["train.py"]),
        ("--steps 3 train.py --steps 4 x", ["train.py", "--steps", "4", "x"]),
        ("--steps 3 -- train.py -h", ["--", "train.py", "-h"]),
        ("package.module:factory", ["package.module:factory"]),
    ],
)
def test_arguments_after_the_script_belong_to_the_script(line: str, target: list[str]):
    options = parser().parse_args(["profile", *line.split()])
    assert options.target == target
    assert options.steps == (3 if line.startswith("--steps") else 20)


def test_arguments_after_a_module_belong_to_the_module():
    options = parser().parse_args("profile --warmup 0 -m package.train --steps 4".split())
    assert (options.module, options.steps, options.warmup) == (["package.train", "--steps", "4"], 20, 0)


def test_traces_are_several_files():
    options = parser().parse_args("profile --trace a.json b.json.gz --ncu c.csv".split())
    assert (options.trace, options.ncu) == ([Path("a.json"), Path("b.json.gz")], Path("c.csv"))


@pytest.mark.parametrize("line", ["--steps 0 a.py", "--steps x a.py", "--warmup -1 a.py", "--format xml a.py"])
def test_numbers_and_choices_are_checked(line: str):
    with pytest.raises(SystemExit) as left:
        parser().parse_args(["profile", *line.split()])
    assert left.value.code == 2
