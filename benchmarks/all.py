"""Runs every benchmark of a CPU, and writes the tables that come from their results.

    python -m benchmarks.all                       everything: some hours
    python -m benchmarks.all --only demo peers     some of them
    python -m benchmarks.all --tables              only the table of README.md and docs/peers.md, from the results
    python -m benchmarks.all --list                what there is, and about how long it takes on two idle cores

Results go to benchmarks/results. A benchmark that misses its target is named at the end; so is one that fails, and its
old result stays. Exits with 1 in both cases. Run it on a machine without other load.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.page import as_markdown, read_older
from benchmarks.readme_table import gains_table

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
_TABLE = re.compile(r"(<!-- gains: [^\n]* -->\n).*?(<!-- end of gains -->)", re.DOTALL)
_MISSED = 1  # the exit code of a benchmark that misses its target


@dataclass(frozen=True)
class Benchmark:
    """A benchmark with a result file.

    Attributes:
        module: Below benchmarks.
        result: The file in results/.
        minutes: About how long it takes on two idle cores.
        options: Its options, besides the one for the file.
        output: The option for the file.
    """

    module: str
    result: str
    minutes: int
    options: tuple[str, ...] = ()
    output: str = "--output"

    def command(self) -> list[str]:
        """The command that writes the result."""
        return [
            sys.executable,
            "-m",
            f"benchmarks.{self.module}",
            *self.options,
            self.output,
            str(RESULTS / self.result),
        ]


BENCHMARKS: Mapping[str, Benchmark] = {
    "demo": Benchmark("demo", "demo.json", 5),
    "peers": Benchmark("peers", "peers.json", 40),
    "models": Benchmark("models", "models-cpu.json", 10, ("--mode", "training", "--seconds", "5")),
    "startup": Benchmark("startup", "startup.json", 30, ("--only", "4x128")),
    "guards": Benchmark("guards", "guards.json", 5),
    "imports": Benchmark("imports", "imports.json", 2),
    "source": Benchmark("source", "source.json", 5),
    "installed": Benchmark("source", "installed.json", 15, ("--packages", "torch", "transformers")),
    "losses": Benchmark("losses", "losses.json", 10),
    "lazy_logits": Benchmark("lazy_logits", "lazy_logits.json", 5),
    "attention_variants": Benchmark("attention_variants", "attention_variants.json", 10),
    "no_loss": Benchmark("no_loss", "no_loss.json", 60),
    "gains": Benchmark("gains", "gains.json", 60),
    "monitor": Benchmark("monitor", "monitor.json", 5),
    "kept_places": Benchmark("kept_places", "kept_places.json", 3),
    "kept_places-16": Benchmark("kept_places", "kept_places-16.json", 3, ("--layers", "16")),
    "verdicts": Benchmark("verdicts", "verdicts.json", 40, output="--out"),
}
# These need something that is not installed with the tests, or are written by another benchmark's results.
BY_HAND: Mapping[str, str] = {
    "launches.json": "it compares with Liger: python -m benchmarks.launches --with FOLDER",
    "gains-tuned.json": "python -m benchmarks.gains --only demo-256 demo-1024 gpt bert llama vit",
    "versions.json": "python -m tools.matrix",
    "decoders.json": "python -m benchmarks.decoders",
    "peers-older-torch.json": "it needs a torch on which Thunder runs: see python -m benchmarks.peers --help",
}


def main(argv: list[str] | None = None) -> int:
    """Runs what the options choose."""
    options = _parser().parse_args(argv)
    if options.list:
        print("\n".join(f"{name:20} about {b.minutes} minutes: {b.result}" for name, b in BENCHMARKS.items()))
        return 0
    ended = {} if options.tables else run_all(options.only or list(BENCHMARKS))
    write_tables()
    for name, status in ended.items():
        if status:
            print(f"{name}: {'a target is missed' if status == _MISSED else f'failed with {status}'}")
    return int(any(ended.values()))


def run_all(names: Sequence[str]) -> dict[str, int]:
    """Runs the benchmarks one after the other, and returns their exit codes."""
    ended = {}
    for name in names:
        print(f"== {name}, about {BENCHMARKS[name].minutes} minutes", flush=True)
        ended[name] = subprocess.run(BENCHMARKS[name].command(), cwd=REPOSITORY).returncode
    return ended


def write_tables() -> None:
    """Writes the table of README.md, and docs/peers.md."""
    peers = json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))
    readme = REPOSITORY / "README.md"
    readme.write_text(with_gains(readme.read_text(encoding="utf-8"), peers), encoding="utf-8")
    (REPOSITORY / "docs" / "peers.md").write_text(as_markdown(peers, read_older(RESULTS)), encoding="utf-8")


def with_gains(text: str, peers: Mapping[str, Any]) -> str:
    """The text of the README with its table as the results have it."""
    table = gains_table(peers)
    return _TABLE.sub(lambda found: f"{found[1]}{table}{found[2]}", text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.all", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS)
    parser.add_argument("--tables", action="store_true", help="run nothing, only write the tables")
    parser.add_argument("--list", action="store_true", help="run nothing, only show the benchmarks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
