"""Whole scripts, each with all passes of a profile."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autofuse.cli import main

FEW = ("--warmup", "1", "--steps", "3", "--trace-steps", "1")
LOOP = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model, loss = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters())
if __name__ == "__main__":
    try:
        for x, y in DataLoader(TensorDataset(torch.randn(300, 4), torch.randint(2, (300,))), batch_size=5):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        print("to the end")
    finally:
        print("cleaned up after", sys.argv[1:])
"""
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Profile a script with this text. Returns the exit code and the profile as JSON."""
    monkeypatch.chdir(tmp_path)

    def profiled(text: str, *arguments: str, options: tuple[str, ...] = FEW) -> tuple[int, dict[str, Any]]:
        Path("train.py").write_text(text)
        code = main(["profile", *options, "train.py", *arguments])
        file = Path("autofuse-profile", "profile.json")
        return code, json.loads(file.read_text()) if file.exists() else {}

    return profiled


def names(data: dict[str, Any]) -> set[str]:
    return {layer["fqn"] for layer in data["layers"]}


def test_a_plain_loop_is_profiled_and_asked_to_end(run: Run, capsys: pytest.CaptureFixture[str]):
    code, data = run(LOOP, "--lr", "1")
    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("cleaned up after ['--lr', '1']\n")
    assert "to the end" not in out
    assert len(data["timing"]["seconds"]) == 3
    assert data["timing"]["samples"] == 5
    assert {"", "0", "1", "2", "(outside)"} <= names(data)
    assert (
        data["flops"]["model"] == 2 * 5 * (4 * 8 + 8 * 2) * 2 + 2 * 5 * 8 * 2
    )  # the first layer's input has no gradient
    assert data["memory"]["peak_bytes"] > 0
    shares = {share["name"]: share for share in data["shares"]}
    assert shares["data"]["basis"].startswith("the host's clock")
    assert sum(shares[n]["share"] for n in ("forward", "backward", "optimizer", "data", "idle")) == pytest.approx(1)
    assert sorted(file.name for file in Path("autofuse-profile").iterdir()) == [
        "profile.html", "profile.json", "trace.json.gz",
    ]  # fmt: skip


def test_only_json_is_on_stdout_and_the_script_may_continue(run: Run, capsys: pytest.CaptureFixture[str]):
    assert run(LOOP, options=(*FEW, "--to-the-end", "--format", "json"))[0] == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["kind"] == "script"
    assert "to the end" in shown.err


def test_accumulated_gradients_are_one_step(run: Run):
    text = LOOP.replace("            optimizer.step()", "            if step % 4 == 0: optimizer.step()")
    code, data = run(text.replace("for x, y in DataLoader(", "for step, (x, y) in enumerate(DataLoader(").replace(
        "batch_size=5):", "batch_size=5)):"
    ))  # fmt: skip
    assert (code, data["timing"]["samples"]) == (0, 20)


def test_two_optimizers_and_models_by_their_names_in_the_script(run: Run):
    code, data = run("""\
import torch
from torch import nn
critic, maker = nn.Linear(3, 1), nn.Linear(2, 3)
ours, theirs = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())
for _ in range(40):
    for optimizer in (ours, ours, theirs):
        critic(maker(torch.randn(7, 2))).mean().backward()
        optimizer.step()
""")
    assert code == 0
    assert {"critic", "maker"} <= names(data)
    assert data["flops"]["model"] == 3 * (3 * 2 * 7 * 3 * 1 + 2 * 2 * 7 * 2 * 3)


def test_inference_needs_no_optimizer(run: Run):
    code, data = run("""\
import torch
model = torch.nn.Linear(3, 5)
with torch.inference_mode():
    for _ in range(40):
        model(torch.randn(2, 3))
""")
    assert (code, data["timing"]["samples"], data["flops"]["model"]) == (0, 2, 2 * 2 * 3 * 5)
    assert "calls of the model" in data["notes"][0]


def test_a_compiled_model_has_its_layers_names(run: Run):
    code, data = run("""\
import torch
from torch import nn
model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
optimizer, compiled = torch.optim.SGD(model.parameters(), lr=0.1), torch.compile(model, backend="eager")
for _ in range(40):
    compiled(torch.randn(2, 3)).sum().backward()
    optimizer.step()
""")
    assert (code, data["flops"]["model"]) == (0, 2 * 2 * 2 * 3 * 3)


def test_a_script_that_raises_shows_its_traceback_and_keeps_what_was_measured(
    run: Run, capsys: pytest.CaptureFixture[str]
):
    code, data = run(LOOP.replace("            optimizer.step()", "            optimizer.step()\n            check()"
        ).replace("if __name__", "left = iter(range(6))\ndef check():\n    if next(left) == 5:\n"
        "        raise OSError('disk full')\nif __name__"))  # fmt: skip
    shown = capsys.readouterr()
    assert code == 2
    assert (
        "OSError: disk full" in shown.err and "in check" in shown.err and "autofuse/profiling/script" not in shown.err
    )
    assert "train.py ended with OSError after 6 steps" in shown.err
    assert len(data["timing"]["seconds"]) == 3
    assert "The program ended before everything was measured." in data["notes"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('hello')", "ended and no step was seen"),
        ("raise SystemExit('no GPU here')", "ended with exit code 'no GPU here' and no step was seen"),
        ("def", "train.py:1: this is not Python"),
    ],
)
def test_a_script_without_steps_is_reported(text: str, said: str, run: Run, capsys: pytest.CaptureFixture[str]):
    assert run(text) == (2, {})
    assert said in capsys.readouterr().err


def test_a_trainer_needs_nothing_else(run: Run):
    code, data = run("""\
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
def main():
    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    rows = [{"input_ids": torch.randint(50, (6,)), "labels": torch.tensor(i % 2)} for i in range(200)]
    arguments = TrainingArguments("out", per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to=[],
                                  save_strategy="no", disable_tqdm=True, use_cpu=True)
    Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows).train()
if __name__ == "__main__":
    main()
""")
    assert (code, data["timing"]["samples"], data["timing"]["tokens"]) == (0, 8, 48)
    assert "bert.encoder.layer.0.attention.self.query" in names(data)


@pytest.mark.night
def test_ranks_of_a_job_profile_the_same_steps_and_the_first_prints(tmp_path: Path):
    (tmp_path / "ddp.py").write_text("""\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(3, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
dist.barrier()  # no rank ends while another one's threads still talk to it: torch sometimes aborts then
dist.destroy_process_group()
""")
    job = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*job, "-m", "autofuse", "profile", *FEW, "ddp.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Written: ") == 1
    files = [json.loads((tmp_path / "autofuse-profile" / f"profile{r}.json").read_text()) for r in ("", ".rank1")]
    assert [[rank["rank"] for rank in data["ranks"]] for data in files] == [[0, 1], [0, 1]]
    assert all(rank["seconds"] > 0 and rank["communication"] > 0 for data in files for rank in data["ranks"])
    assert {layer["fqn"] for layer in files[0]["layers"]} == {"", "(outside)"}  # without DDP's "module"


def test_calls_that_autofuse_itself_makes_in_a_script_are_no_steps(run: Run):
    code, data = run("""\
import torch
import autofuse
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
    def forward(self, x):
        h = self.up(x)
        return self.down(0.5 * h * (1 + torch.erf(h / 2**0.5)))
torch.manual_seed(0)
model = Net()
autofuse.optimize(model, (torch.randn(4, 8),), tune=False)
autofuse.compare(model, model, (torch.randn(4, 8),), pairs=20, progress=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
""")
    assert code == 0
    assert "steps of the optimizer" in data["notes"][0]
    assert {place["status"] for layer in data["layers"] for place in layer["places"]} == {"fused"}
    assert data["flops"]["model"] == 2 * 2 * (2 * 4 * 8 * 32) + 2 * 4 * 8 * 32  # that of its own code


def test_an_inference_loop_that_ends_early_leaves_no_patches(run: Run):
    before = torch.nn.Module.__call__
    code, data = run(
        """\
import torch
model = torch.nn.Linear(3, 5)
for _ in range(9):
    model(torch.randn(2, 3))
""",
        options=("--warmup", "1", "--steps", "3", "--trace-steps", "5"),
    )
    assert (code, len(data["timing"]["seconds"])) == (2, 3)
    assert torch.nn.Module.__call__ is before
