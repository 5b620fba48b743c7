"""Two processes that profile together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autofuse.profiling.live.ranks import gather_ranks, this_rank
from autofuse.results.profile import Rank

_SCRIPT = """
import sys, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import autofuse

def main():
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)))
    x = torch.ones(16, 64)

    def step(model, x):
        if rank == 1:
            time.sleep(0.05)  # a straggler: the others wait for it in their collectives
        model(x).square().mean().backward()

    profile = autofuse.profile(model, x, step=step, steps=4, traced=2, probe=False, progress=False)
    if rank == 0:
        open(sys.argv[1], "w").write(profile.to_json())

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
main()
dist.barrier()  # no rank ends while another one's threads still talk to it: torch sometimes aborts then
dist.destroy_process_group()
"""


def test_a_single_process_is_not_a_rank() -> None:
    assert this_rank() is None
    assert gather_ranks(Rank(0, 1.0)) == ()


@pytest.mark.night  # by day: the ranks of a script, in test_script.py
def test_two_ranks_are_listed_with_their_communication_time(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "profile.json"
    script.write_text(_SCRIPT)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, out]
    done = subprocess.run(list(map(str, run)), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    profile = json.loads(out.read_text())
    ranks = profile["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert ranks[1]["seconds"] > 0.05  # its steps sleep; rank 0 may come late to any of them, and waits less then
    assert ranks[0]["seconds"] > 0
    assert all(rank["communication"] > 0 for rank in ranks)
    assert {layer["fqn"] for layer in profile["layers"]} >= {"", "0", "1", "2"}  # without DDP's "module"
    assert profile["notes"] == []
    assert profile["diagnosis"]["class"] == "straggler" and "rank 1 comes last" in profile["diagnosis"]["sentence"]
