"""Runs one block of docs/integrations.md, without the marked line and then as it stands, each in a folder of its own.

`python -m tests.integrations.recipe HEADING FILE`, alone or under torchrun. Rank 0 writes to FILE, as JSON, the losses
of both and how often each fused operator of torch's ran.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
MARK = "# the added line"


def recipe(heading: str) -> str:
    """The block under a heading."""
    found = re.search(rf"^## {re.escape(heading)}\n.*?^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found, heading
    return found[1]


def without_the_line(code: str) -> str:
    """The job as it was before: without the marked line."""
    kept = [line for line in code.splitlines(keepends=True) if MARK not in line]
    assert len(kept) == len(code.splitlines()) - 1
    return "".join(kept)


def allow_fsdp_on_cpu() -> None:
    """accelerate shards on accelerators only; torch shards anywhere, so accelerate is told that it may."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    made = Accelerator.__init__

    def init(self: Accelerator, fsdp_plugin: Any) -> None:
        made(self, cpu=True)
        self.state._shared_state.update(distributed_type=DistributedType.FSDP, fsdp_plugin=fsdp_plugin)

    Accelerator.__init__ = init


def ran(code: str, folder: str) -> dict[str, Any]:
    """Run a script in a folder of its own: its losses, and how often each fused operator ran."""
    Path(folder).mkdir(exist_ok=True)
    os.chdir(folder)
    scope: dict[str, Any] = {"__name__": "__main__"}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        exec(compile(code, str(PAGE), "exec"), scope)
    os.chdir("..")
    operators = {
        e.key: e.count for e in profiler.key_averages() if "scaled_dot_product" in e.key or "MaskedSoftmax" in e.key
    }
    return {"losses": scope["losses"], "operators": operators}


def main(heading: str, file: str) -> None:
    warnings.filterwarnings("ignore")
    if heading.startswith("accelerate"):
        allow_fsdp_on_cpu()
    code = recipe(heading)
    found = {"plain": ran(without_the_line(code), "plain")}
    torch._dynamo.reset()
    found["fused"] = ran(re.sub(r"^dist\.init_process_group.*\n", "", code, flags=re.MULTILINE), "fused")
    if os.environ.get("RANK", "0") == "0":
        Path(file).write_text(json.dumps(found))
    sys.stdout.flush()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        os._exit(0)  # DDP's reducer holds the GIL while it waits for a gloo thread that may need it: not torn down here


if __name__ == "__main__":
    main(*sys.argv[1:])
