"""mkdocs calls these functions while it builds the site.

They add the pages that are generated (one for each rule) and the pages that are kept at the top of the repository, and
make links to them work. A link to a file that is no page, such as a JSON file of results, becomes plain text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[2]
if str(REPOSITORY) not in sys.path:
    sys.path.append(str(REPOSITORY))  # last: `autofuse` is the installed one, which has autofuse.rules

from autofuse.loading.registry import load_rules  # noqa: E402
from autofuse.match.pattern import LoadedRule  # noqa: E402
from tools.site.rule_pages import rule_page  # noqa: E402

# Pages outside of docs/, by the path that links use from the top of the repository.
TOP_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "README.md": "index.md",
}
_INDEX = re.compile(r"\]\[(\d+)\]")  # code in a sentence, not a link
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the parts of the navigation that are lists of files."""
    rules = [f"rules/{code}.md" for code in rules_by_code()]
    decisions = sorted(f"decisions/{p.name}" for p in (REPOSITORY / "docs/decisions").glob("*.md"))
    parts = {"@rules": rules, "@decisions": [p for p in decisions if p != "decisions/README.md"]}
    config.nav = _expand(config.nav, parts)
    return config


def rules_by_code() -> dict[str, list[LoadedRule]]:
    """The rules of autofuse. A code may have several."""
    found: dict[str, list[LoadedRule]] = {}
    for loaded in load_rules():
        found.setdefault(loaded.rule.code, []).append(loaded)
    return found


def _expand(nav: Any, parts: dict[str, list[str]]) -> Any:
    if isinstance(nav, list):
        return [entry for item in nav for entry in _entries(item, parts)]
    return nav


def _entries(item: Any, parts: dict[str, list[str]]) -> list[Any]:
    if not isinstance(item, dict):
        return [item]
    ((title, value),) = item.items()
    return list(parts[title]) if title in parts else [{title: _expand(value, parts)}]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and those at the top of the repository."""
    for code, rules in rules_by_code().items():
        files.append(File.generated(config, f"rules/{code}.md", content="\n".join(map(rule_page, rules))))
    for source, name in TOP_PAGES.items():
        if name != "index.md":
            files.append(File.generated(config, name, content=(REPOSITORY / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links work where pages are in other folders than their files."""
    source = next((s for s, name in TOP_PAGES.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    markdown = _INDEX.sub(r"]\\[\1]", markdown)
    return _LINK.sub(lambda m: new_link(m[1], m[2], source, page.file.src_uri, files), markdown)


def new_link(text: str, target: str, source: str, page: str, files: Files) -> str:
    """A link as it has to be on the site.

    Args:
        text: The text of the link.
        target: What it names: an address, an anchor, or a path relative to `source`.
        source: The path of the file with the link, from the top of the repository.
        page: The path of its page, below docs/.
        files: The pages of the site.
    """
    path, _, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return f"[{text}]({target})"
    wanted = _normalized_path(f"{source.rpartition('/')[0]}/{path}" if "/" in source else path)
    name = TOP_PAGES.get(wanted) or wanted.removeprefix("docs/")
    if not (wanted in TOP_PAGES or wanted.startswith("docs/")) or files.get_file_from_path(name) is None:
        return text
    up = "../" * page.count("/")
    return f"[{text}]({up}{name}{'#' + anchor if anchor else ''})"


def _normalized_path(path: str) -> str:
    """The path without `.` and `..`."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
