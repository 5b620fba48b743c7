"""The command line: downloads, parses, writes. `--apex` names a checkout of NVIDIA apex, instead of cloning it."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from autofuse.kernels import apex, flash_attn, flash_attn_3, flash_attn_cute, flash_attn_parts, liger, packages, quack
from autofuse.kernels.package_functions import PackageFunction
from tools.signatures.reading import Facts, function_facts, module_file
from tools.signatures.sources import SOURCES, Source, fetch

OF_SOURCE = {
    "flash-attn": (flash_attn, flash_attn_parts),
    "flash_attn_3": (flash_attn_3,),
    "flash-attn-4": (flash_attn_cute,),
    "liger-kernel": (liger,),
    "quack-kernels": (quack,),
    "apex": (apex,),
}
FOLDER = Path(__file__).parents[2] / "tests" / "kernels" / "signatures"


def called_functions(source: str) -> list[PackageFunction]:
    """Return the functions of a package that providers call."""
    return [
        value for module in OF_SOURCE[source] for value in vars(module).values() if isinstance(value, PackageFunction)
    ]


def detected_modules(source: str) -> list[str]:
    """Return the modules by which autofuse detects a package."""
    tops = {borrowed.module.partition(".")[0] for borrowed in called_functions(source)}
    parts = [value.parts for value in vars(packages).values() if isinstance(value, packages.Package) and value.parts]
    names = [m for part in parts if part.distribution == source for m in part.modules]
    return sorted({name for name in names if name.partition(".")[0] in tops})


def facts_of(source: Source, root: Path, version: str) -> Facts:
    """Return the recorded facts of a package."""
    functions: Facts = {}
    for borrowed in called_functions(source.name):
        file = module_file(root, borrowed.module)
        functions[borrowed.path] = None if file is None else function_facts(file, borrowed.name)
    modules = {name: module_file(root, name) is not None for name in detected_modules(source.name)}
    return {"distribution": source.name, "version": version, "modules": modules, "functions": functions}


def main() -> int:
    """Write one file for each package, and print the functions that were not found."""
    parser = argparse.ArgumentParser(prog="python -m tools.signatures", description=__doc__)
    parser.add_argument("--apex", type=Path, help="a checkout of NVIDIA apex")
    parser.add_argument("--only", choices=[s.name for s in SOURCES], nargs="*", help="the packages (default: all)")
    options = parser.parse_args()
    missing = []
    for source in SOURCES:
        if options.only and source.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            facts = facts_of(
                source, *fetch(source, Path(folder) / source.name, options.apex if source.name == "apex" else None)
            )
        file = FOLDER / f"{source.name}.json"
        file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        missing += [name for name, found in facts["functions"].items() if found is None]
        print(f"{source.name} {facts['version']}: {len(facts['functions'])} functions")
    for name in missing:
        print(f"not found: {name}")
    return bool(missing)


if __name__ == "__main__":
    raise SystemExit(main())
