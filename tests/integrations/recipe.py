"""Runs a code block of docs/integrations.md with and without the marked line, each in a separate folder.

`python -m tests.integrations.recipe HEADING FILE`, alone or under torchrun. Rank 0 writes JSON to FILE: the losses of
both runs, and how often each fused torch operator ran.
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
    """The code block under a heading."""
    match = re.search(rf"^## {re.escape(heading)}\n.*?^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert match, heading
    return match[1]


def remove_marked_line(code: str) -> str:
    """The code without the marked line."""
    lines = [line for line in code.splitlines(keepends=True) if MARK not in line]
    assert len(lines) == len(code.splitlines()) - 1
    return "".join(lines)


def allow_fsdp_on_cpu() -> None:
    """Makes accelerate shard on a CPU. It allows this on accelerators only, although torch can shard anywhere."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

    original_init = Accelerator.__init__

    def init(self: Accelerator, fsdp_plugin: Any) -> None:
        original_init(self, cpu=True)
        self.state._shared_state.update(distributed_type=DistributedType.FSDP, fsdp_plugin=fsdp_plugin)

    Accelerator.__init__ = init


def run_script(code: str, folder: str) -> dict[str, Any]:
    """Runs a script in a folder of its own. Returns its losses, and how often each fused operator ran."""
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
    results = {"plain": run_script(remove_marked_line(code), "plain")}
    torch._dynamo.reset()
    results["fused"] = run_script(re.sub(r"^dist\.init_process_group.*\n", "", code, flags=re.MULTILINE), "fused")
    if os.environ.get("RANK", "0") == "0":
        Path(file).write_text(json.dumps(results))
    sys.stdout.flush()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        os._exit(0)  # no teardown: DDP's reducer holds the GIL while it waits for a gloo thread that may need it


if __name__ == "__main__":
    main(*sys.argv[1:])
