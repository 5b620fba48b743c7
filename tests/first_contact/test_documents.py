"""What is read from a page: files to save, and commands to type."""

from __future__ import annotations

import pytest
import yaml

from tests.first_contact.documents import REPOSITORY, Command, Saved, section, steps_in, steps_of

PAGE = """\
# A page

Save this as `a.py`, or use a file of your own:

```python
x = 1
```

Then type:

```sh
python3 -m venv .venv
.venv/bin/pip install autofuse-torch   # some seconds
# a comment
.venv/bin/autofuse check a.py
```

Like this:

```python
y = 2
```

`folder/c.py`

```python
z = 3
```
"""


def test_files_and_commands_are_read_in_their_order() -> None:
    assert steps_in(PAGE) == [
        Saved("a.py", "x = 1\n"),
        Command("python3 -m venv .venv"),
        Command(".venv/bin/pip install autofuse-torch"),
        Command(".venv/bin/autofuse check a.py"),
        Saved("folder/c.py", "z = 3\n"),
    ]


def test_installation_commands_are_distinguished() -> None:
    assert [s.installs for s in steps_in(PAGE) if isinstance(s, Command)] == [True, True, False]


@pytest.mark.parametrize(
    ("page", "files", "commands"),
    [("files", {"model.py"}, 5), ("models", {"train.py"}, 3), ("profiles", set(), 5)],
)
def test_each_start_page_has_its_files_and_commands(page: str, files: set[str], commands: int) -> None:
    steps = steps_of(f"docs/start/{page}.md")
    assert {s.name for s in steps if isinstance(s, Saved)} == files
    assert len([s for s in steps if isinstance(s, Command)]) == commands


def test_the_hook_on_the_page_is_the_one_of_the_repository() -> None:
    (config,) = (s for s in steps_in(section("docs/configuration.md", "pre-commit")) if isinstance(s, Saved))
    (printed,) = yaml.safe_load(config.text)["repos"][0]["hooks"]
    described = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    (own,) = (hook for hook in described if hook["id"] == printed["id"])
    assert printed.pop("additional_dependencies") == ["autofuse-torch"]
    assert printed == {key: value for key, value in own.items() if key != "description"}


def test_a_section_ends_at_the_next_heading() -> None:
    assert "pre-commit-config" in section("docs/configuration.md", "pre-commit")
    assert "which line" not in section("docs/configuration.md", "Patterns")
