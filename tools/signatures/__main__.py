"""Command line: download, read, write. `--apex` names a checkout of NVIDIA apex, where it should not be cloned."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from autofuse.kernels import apex, flash_attn, flash_attn_3, flash_attn_cute, flash_attn_parts, liger, packages, quack
from autofuse.kernels.package_functions import PackageFunction
from tools.signatures.reading import Facts, function_facts, module_file
from tools.signatures.sources import SOURCES, Source, fetched

OF_SOURCE = {
    "flash-attn": (flash_attn, flash_attn_parts),
    "flash_attn_3": (flash_attn_3,),
    "flash-attn-4": (flash_attn_cute,),
    "liger-kernel": (liger,),
    "quack-kernels": (quack,),
    "apex": (apex,),
}
FOLDER = Path(__file__).parents[2] / "tests" / "kernels" / "signatures"


def called(source: str) -> list[PackageFunction]:
    """The functions of a package that its providers call."""
    return [
        value for module in OF_SOURCE[source] for value in vars(module).values() if isinstance(value, PackageFunction)
    ]


def asked_for(source: str) -> list[str]:
    """The modules by which a package is known to be there."""
    tops = {borrowed.module.partition(".")[0] for borrowed in called(source)}
    parts = [value.parts for value in vars(packages).values() if isinstance(value, packages.Package) and value.parts]
    names = [m for part in parts if part.distribution == source for m in part.modules]
    return sorted({name for name in names if name.partition(".")[0] in tops})


def facts_of(source: Source, root: Path, version: str) -> Facts:
    """What is written down of a package."""
    functions: Facts = {}
    for borrowed in called(source.name):
        file = module_file(root, borrowed.module)
        functions[borrowed.path] = None if file is None else function_facts(file, borrowed.name)
    modules = {name: module_file(root, name) is not None for name in asked_for(source.name)}
    return {"distribution": source.name, "version": version, "modules": modules, "functions": functions}


def main() -> int:
    """Write one file a package, and say what was not found."""
    parser = argparse.ArgumentParser(prog="python -m tools.signatures", description=__doc__)
    parser.add_argument("--apex", type=Path, help="a checkout of NVIDIA apex")
    parser.add_argument("--only", choices=[s.name for s in SOURCES], nargs="*", help="packages to read, else all")
    options = parser.parse_args()
    missing = []
    for source in SOURCES:
        if options.only and source.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            facts = facts_of(
                source, *fetched(source, Path(folder) / source.name, options.apex if source.name == "apex" else None)
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
