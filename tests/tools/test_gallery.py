"""The gallery: a repository is fetched, rewritten, trained before and after, and shown; failures are named."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tools.gallery import repository as rows
from tools.gallery.__main__ import main
from tools.gallery.data import MAKERS
from tools.gallery.repository import Repository, Unavailable, all_repositories, prepare_tree

TRAIN = """\
import torch
from torch import nn

WIDTH = 256  # of the layer

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, WIDTH)
        self.down = nn.Linear(WIDTH, 8)

    def forward(self, x):
        h = self.up(x)
        return self.down(0.5 * h * (1 + torch.erf(h / 2**0.5)))

def other(x):
    return x

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    loss = net(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ROW = """\
[[repository]]
name = "{name}"
commit = "{commit}"
rewrite = ["train.py"]
command = ["train.py"]
settings = {{ "train.py" = {{ WIDTH = "16" }} }}
data = {{ "given.csv" = "series" }}
by_hand = ["train.py:Net.forward", "train.py:other"]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, object]]:
    """One run with a repository that exists and one that does not: the exit code, the page and the JSON."""
    folder = tmp_path_factory.mktemp("gallery")
    made = folder / "mirrors" / "somebody+net" / "repo"
    made.mkdir(parents=True)
    (made / "train.py").write_text(TRAIN)
    git = ["git", "-C", str(made), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    names = folder / "repositories.toml"
    names.write_text(ROW.format(name="somebody/net", commit=commit) + ROW.format(name="no+body/x", commit="0" * 40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "LIST", names)
        patch.setattr(Repository, "address", property(lambda self: str(folder / "nowhere")))
        options = ["--mirrors", str(folder / "mirrors"), "--steps", "6", "--rounds", "1"]
        page, data = folder / "gallery.md", folder / "gallery.json"
        code = main([str(folder / "cache"), *options, "--output", str(page), "--json", str(data)])
    return code, page.read_text(), json.loads(data.read_text())


@pytest.mark.night
def test_a_repository_trains_to_the_same_losses_before_and_after(run: tuple[int, str, dict[str, object]]) -> None:
    code, page, data = run
    first = data["repositories"][0]  # type: ignore[index]
    trained = first["trained"]
    assert code == 0 and len(trained["before"]) == len(trained["after"]) == 6
    assert trained["before"] == pytest.approx(trained["after"], rel=1e-5)
    assert len(set(trained["before"])) == 6  # it does train
    assert first["rewritten"]["added"] >= 1 and "| `train.py` Net.forward | AF301 | safe |  |" in page


@pytest.mark.night
def test_missed_places_are_named(run: tuple[int, str, dict[str, object]]) -> None:
    assert "autofuse did not: `train.py:other`\n" in run[1]


@pytest.mark.night
def test_a_repository_that_cannot_be_fetched_is_named_and_the_run_continues(
    run: tuple[int, str, dict[str, object]],
) -> None:
    assert "It was not read: no+body/x could not be fetched: " in run[1]


def test_an_unknown_name_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--only", "nobody/nothing"]) == 2
    assert "No repository is called nobody/nothing." in capsys.readouterr().out


def test_a_setting_that_the_file_does_not_have_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(Unavailable, match=r"a\.py sets y in 0 lines"):
        prepare_tree(Repository("a/b", "0" * 40, ("a.py",), settings={"a.py": {"y": "2"}}), tmp_path)


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_data_is_the_same_at_every_run(kind: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        MAKERS[kind](tmp_path / name)
    text = (tmp_path / "one").read_bytes()
    assert text == (tmp_path / "two").read_bytes() and len(text) > 10_000


@pytest.mark.parametrize("row", all_repositories(), ids=lambda row: row.name)
def test_every_row_is_complete(row: Repository) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", row.name) and re.fullmatch("[0-9a-f]{40}", row.commit)
    assert row.rewrite and bool(row.command) != bool(row.untrained)
    assert set(row.data.values()) <= set(MAKERS)
    assert all(":" in place for place in row.by_hand)
