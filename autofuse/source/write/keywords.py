"""Adds arguments to a libcst call and takes them out, laid out as their neighbours.

Knows the whitespace and commas of one call. Decides nothing about which arguments a call should have.
"""

from __future__ import annotations

import libcst as cst

_NO_SPACE = cst.SimpleWhitespace("")


def with_argument(call: cst.Call, keyword: str, text: str) -> cst.Call:
    """`call` with one more keyword argument, laid out as the ones before it; a comment stays on its line."""
    value, equal = cst.parse_expression(text), cst.AssignEqual(_NO_SPACE, _NO_SPACE)
    if not call.args:
        return call.with_changes(args=[cst.Arg(value, cst.Name(keyword), equal=equal)])
    *front, last = (a.with_changes(value=_enclosed(a.value)) for a in call.args)
    space = getattr(front[-1].comma, "whitespace_after", None) if front else call.whitespace_before_args
    before = space if isinstance(space, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")
    end, ending = last.comma, getattr(last.comma, "whitespace_after", None)
    if isinstance(ending, cst.ParenthesizedWhitespace) and ending.first_line.comment:
        if isinstance(before, cst.ParenthesizedWhitespace):
            before = ending.with_changes(last_line=before.last_line, indent=before.indent)
        plain = cst.TrailingWhitespace(newline=ending.first_line.newline)
        end = cst.Comma(whitespace_after=ending.with_changes(first_line=plain, empty_lines=[]))
    added = cst.Arg(value, cst.Name(keyword), comma=end, whitespace_after_arg=last.whitespace_after_arg, equal=equal)
    comma = cst.Comma(whitespace_after=before)
    return call.with_changes(args=[*front, last.with_changes(comma=comma, whitespace_after_arg=_NO_SPACE), added])


def split_arguments(call: cst.Call, tree: cst.Module, indent: str, step: str, room: int) -> cst.Call:
    """A call that is too long for its line with its arguments on a line of their own, or on one each if that is long.

    `indent` is that of its line, `step` one more, and `room` what a line may have. Formatters lay it out like this.
    """
    plain = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=_NO_SPACE) for a in call.args]
    texts = [tree.code_for_node(a.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for a in plain]
    together = len(indent) + len(step) + sum(map(len, texts)) + 2 * (len(texts) - 1) <= room
    inner, outer = _new_line(tree, indent + step), _new_line(tree, indent)
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ") if together else inner)
    args = [a.with_changes(comma=between) for a in plain[:-1]]
    last = plain[-1].with_changes(whitespace_after_arg=outer) if together else None
    args.append(last or plain[-1].with_changes(comma=cst.Comma(whitespace_after=outer)))
    return call.with_changes(args=args, whitespace_before_args=inner)


def _new_line(tree: cst.Module, indent: str) -> cst.ParenthesizedWhitespace:
    newline = cst.TrailingWhitespace(newline=cst.Newline(None))
    return cst.ParenthesizedWhitespace(first_line=newline, indent=True, last_line=cst.SimpleWhitespace(indent))


def _enclosed(value: cst.BaseExpression) -> cst.BaseExpression:
    """A generator needs parentheses of its own where it is not the only argument."""
    if not isinstance(value, cst.GeneratorExp) or value.lpar:
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def without_argument(call: cst.Call, index: int) -> cst.Call:
    """`call` without its argument at `index`; what ends the list then ends it still."""
    args = list(call.args)
    gone = args.pop(index)
    if not args:
        return call.with_changes(args=[], whitespace_before_args=_NO_SPACE)
    if index == len(args):
        last = args[-1]
        args[-1] = last.with_changes(comma=_ending(last, gone), whitespace_after_arg=gone.whitespace_after_arg)
    return call.with_changes(args=args)


def _ending(last: cst.Arg, gone: cst.Arg) -> cst.Comma | cst.MaybeSentinel:
    """The comma of `gone`, which was the last argument, after the one before it: with the comment of its line."""
    mine, its = getattr(last.comma, "whitespace_after", None), getattr(gone.comma, "whitespace_after", None)
    if not isinstance(gone.comma, cst.Comma) or not isinstance(its, cst.ParenthesizedWhitespace):
        return gone.comma
    first = mine.first_line if isinstance(mine, cst.ParenthesizedWhitespace) else None
    plain = cst.TrailingWhitespace(newline=its.first_line.newline)
    return gone.comma.with_changes(whitespace_after=its.with_changes(first_line=first or plain, empty_lines=[]))
