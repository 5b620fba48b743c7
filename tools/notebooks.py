"""Executes the notebooks of examples/ and stores what their cells print.

    python -m tools.notebooks                     executes them with Jupyter, and writes the outputs into the files

It needs `pip install -c constraints.txt '.[notebook]'`. A cell that raises ends it with exit code 1. Times and paths of
the machine are parts of the outputs, so run it on a machine without other load.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = tuple(sorted((REPOSITORY / "examples").glob("*.ipynb")))
_LIMIT = 1800  # seconds for one cell
_WRITES = re.compile(r"%%writefile (\S+)\n")


def execute(notebook: Path, folder: Path) -> Any:
    """The notebook with the outputs of its cells. It runs in `folder`, where it may write files.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raises.
    """
    import nbclient
    import nbformat

    read = nbformat.read(notebook, as_version=4)
    os.environ["COLUMNS"] = "100"
    client = nbclient.NotebookClient(read, timeout=_LIMIT, resources={"metadata": {"path": str(folder)}})
    client.execute()
    for cell in read.cells:
        cell.metadata.pop("execution", None)  # the times of day at which it ran
    return read


def as_script(notebook: Path) -> str:
    """The cells as a Python script. Cells that write a file write it, and commands run without a shell's features."""
    lines = ["import shlex, subprocess", "from pathlib import Path"]
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            lines.append(_as_python("".join(cell["source"])))
    return "\n".join(lines) + "\n"


def _as_python(source: str) -> str:
    if written := _WRITES.match(source):
        return f"Path({written[1]!r}).write_text({source[written.end() :] + chr(10)!r})"
    return re.sub(r"^!(.*)$", lambda m: f"subprocess.run(shlex.split({m[1]!r}))", source, flags=re.MULTILINE)


def main() -> int:
    """Executes every notebook in a temporary folder."""
    import nbclient.exceptions
    import nbformat

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for notebook in NOTEBOOKS:
        folder = Path(tempfile.mkdtemp())
        os.environ["AUTOFUSE_CACHE_DIR"] = str(folder / "cache")  # nothing is known from earlier processes
        try:
            nbformat.write(execute(notebook, folder), notebook)
        except nbclient.exceptions.CellExecutionError as error:
            print(f"{notebook.name}: {error}", file=sys.stderr)
            return 1
        finally:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
