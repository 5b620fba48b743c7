"""Comments that an edit parted from what they spoke of."""

from __future__ import annotations

import io
import tokenize
from collections import Counter

_SKIP = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}


def moved_comments(before: str, after: str) -> list[str]:
    """Comments that occur more often, that left their line's end, or that stand before what they did not.

    A comment on a line of its own may stay before the changed statement if one of the lines that it stood before went:
    then no other comment may stand between them.
    """
    old, new = _comments(before), _comments(after)
    found = [c for c, n in (Counter(c for c, _, _ in new) - Counter(c for c, _, _ in old)).items() for _ in range(n)]
    kept = {line.strip() for line in after.split("\n")} & {line.strip() for line in before.split("\n")}
    places = Counter(old)
    for comment, own, beside in new:
        if places[comment, own, beside] > 0:
            places[comment, own, beside] -= 1
        elif not own and any(c == comment and not o for c, o, _ in old):
            continue
        elif own and beside not in kept and any(c == comment and o for c, o, _ in old):
            continue  # it stands before the statement that was written anew
        else:
            found.append(comment)
    return list(dict.fromkeys(found))


def _comments(text: str) -> list[tuple[str, bool, str]]:
    """(comment, whether it has a line of its own, the line of code that it stands on or before)."""
    lines = text.split("\n")
    source = text if text[:1] not in " \t" else "if True:\n" + text
    shift = source.count("\n") - text.count("\n")
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            at = token.start[0] - 1 - shift
            own = not lines[at][: token.start[1]].strip()
            code = at
            while own and code < len(lines) and (not lines[code].strip() or lines[code].lstrip().startswith("#")):
                code += 1
            beside = lines[code].split("#")[0].strip() if code < len(lines) else ""
            found.append((token.string, own, beside))
    return found
