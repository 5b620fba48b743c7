"""Looks for words in the other files of a command. What another file does may decide whether a call can be edited.

For example, an optimizer in one file updates the complex parameters that a model in another file makes. The bytes of a
file are searched first, and only files that contain a word are parsed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from autofuse.source.capture.node_index import node_index
from autofuse.source.capture.scope import FileScope
from autofuse.source.capture.syntax import walk
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.call_context import CallContext

_ENOUGH = 2  # files with the words: one of them may be the file that asks


_CONVERSIONS = frozenset({"to", "type", "set_default_dtype"})
# These create real tensors, unless a word in the call says something else.
_FACTORIES = frozenset("ones zeros empty rand randn full eye Tensor FloatTensor".split())


def first_file_with_word(
    files: ProjectFiles, scope: FileScope, words: tuple[str, ...], stored_by: tuple[str, ...] = ()
) -> str:
    """Return the name of another file with one of `words`.

    Args:
        files: The files of the command.
        scope: The file that asks.
        words: Whole words or parts of words, as `CallContext.first_line_of_word` reads them.
        stored_by: The last parts of functions. If any are given, the file also calls one of them with a value that may
            have to do with `words`: any value but new tensors of a torch function, with none of the words. Or it passes
            one of the words to a class or a conversion: `Linear(3, 4, dtype=torch.cfloat)`.

    Returns:
        The name of the file; "" if there is none.
    """
    found = files.answer((words, stored_by), lambda: tuple(islice(_files_with_word(files, words, stored_by), _ENOUGH)))
    own = files.path_of(scope)
    return next((name for path, name in found if path != own), "")


def _files_with_word(
    files: ProjectFiles, words: tuple[str, ...], stored_by: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the paths and the names of the files with these words."""
    for other in files.files_with_text(words):
        if CallContext(other).first_line_of_word(*words) and (not stored_by or _stores(other, words, stored_by)):
            yield files.path_of(other), other.file.name if other.file is not None else ""


def _stores(scope: FileScope, words: tuple[str, ...], stored_by: tuple[str, ...]) -> bool:
    """Whether a call of a function in `stored_by` may get a value that has to do with `words`."""
    for call in node_index(scope.tree).of(ast.Call):
        name = _last_part(call.func)
        if name in stored_by and not _is_new_tensor(call, scope, words):
            return True
        if (name[:1].isupper() or name in _CONVERSIONS) and _is_passed_one(call, words):
            return True
    return False


def _is_passed_one(call: ast.Call, words: tuple[str, ...]) -> bool:
    """Whether an argument of a call is one of the words: `dtype=torch.cfloat`."""
    return any(_last_part(value) in words for value in (*call.args, *(k.value for k in call.keywords)))


def _is_new_tensor(call: ast.Call, scope: FileScope, words: tuple[str, ...]) -> bool:
    """Whether the last positional argument of a call is a new tensor whose text has none of the words."""
    value = call.args[-1] if call.args else None
    if not isinstance(value, ast.Call) or _last_part(value.func) not in _FACTORIES:
        return False
    own_words = {w for n in walk(value) if (w := getattr(n, "attr", getattr(n, "id", "")))}
    return (scope.name_of(value.func) or "").startswith("torch.") and own_words.isdisjoint(words)


def _last_part(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
