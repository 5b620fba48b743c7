"""Finds comments that an edit separated from the code that they describe."""

from __future__ import annotations

import io
import tokenize
from collections import Counter

_SKIP = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}


def moved_comments(before: str, after: str) -> list[str]:
    """Return comments that occur more often, are no longer at the end of their line, or precede other code than before.

    A comment on its own line may stay before a changed statement if the line that followed it is gone, and no other
    comment is between them.
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
            continue  # it precedes the rewritten statement
        else:
            found.append(comment)
    return list(dict.fromkeys(found))


def _comments(text: str) -> list[tuple[str, bool, str]]:
    """(comment, whether it is alone on its line, the line of code on which or before which it is)."""
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
