"""Adds arguments to a libcst call and removes them, with the same whitespace and commas as the other arguments."""

from __future__ import annotations

import libcst as cst

from autofuse.source.write.keyword_spacing import equal_sign

_NO_SPACE = cst.SimpleWhitespace("")


def add_argument(call: cst.Call, keyword: str, text: str, spaced: bool = False) -> cst.Call:
    """Returns `call` with one more keyword argument, formatted like the others. A comment stays on its line.

    Args:
        call: the call.
        keyword: the name of the argument.
        text: its value.
        spaced: whether the file has spaces around `=`. This matters if the call has no keyword argument.
    """
    value, equal = cst.parse_expression(text), equal_sign(call, spaced)
    if not call.args:
        return call.with_changes(args=[cst.Arg(value, cst.Name(keyword), equal=equal)])
    *front, last = (a.with_changes(value=_with_parentheses(a.value)) for a in call.args)
    space = getattr(front[-1].comma, "whitespace_after", None) if front else call.whitespace_before_args
    before = _only_line_break(space) if isinstance(space, cst.ParenthesizedWhitespace) else cst.SimpleWhitespace(" ")
    end, ending = last.comma, getattr(last.comma, "whitespace_after", None)
    if isinstance(ending, cst.ParenthesizedWhitespace) and ending.first_line.comment:
        if isinstance(before, cst.ParenthesizedWhitespace):
            before = ending.with_changes(last_line=before.last_line, indent=before.indent)
        end = cst.Comma(whitespace_after=_only_line_break(ending))
    added = cst.Arg(value, cst.Name(keyword), comma=end, whitespace_after_arg=last.whitespace_after_arg, equal=equal)
    comma = cst.Comma(whitespace_after=before)
    return call.with_changes(args=[*front, last.with_changes(comma=comma, whitespace_after_arg=_NO_SPACE), added])


def _only_line_break(space: cst.ParenthesizedWhitespace) -> cst.ParenthesizedWhitespace:
    """A line break with the same indentation, and without the comments, blank lines and spaces at the end of a line."""
    first = cst.TrailingWhitespace(whitespace=_NO_SPACE, newline=space.first_line.newline)
    return space.with_changes(first_line=first, empty_lines=[])


def place_last_argument(call: cst.Call, tree: cst.Module, indent: str, argument_indent: str, step: str) -> cst.Call:
    """Returns a call of several lines whose last argument, which was added, is too long for its line.

    If the closing parenthesis has its own line, each argument gets a line, as formatters do. Otherwise only the last
    one gets a line, with the indentation of the argument before it.
    """
    *front, before, added = call.args
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace) and isinstance(
        added.whitespace_after_arg, cst.ParenthesizedWhitespace
    ):
        return split_arguments(call, tree, indent, step, 0)
    if isinstance(getattr(before.comma, "whitespace_after", None), cst.ParenthesizedWhitespace):
        return call  # the argument has a line of its own already
    comma = cst.Comma(whitespace_after=_new_line(tree, argument_indent))
    return call.with_changes(args=[*front, before.with_changes(comma=comma), added])


def split_arguments(call: cst.Call, tree: cst.Module, indent: str, step: str, room: int) -> cst.Call:
    """Splits a call that is too long for its line, as formatters do.

    All arguments go on one new line if they fit. Otherwise each gets a line of its own.

    Args:
        call: the call.
        tree: the module.
        indent: the indentation of its line.
        step: one level of indentation.
        room: the number of characters that a line may have.
    """
    arguments = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=_NO_SPACE) for a in call.args]
    texts = [tree.code_for_node(a.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for a in arguments]
    fits_on_one_line = len(indent) + len(step) + sum(map(len, texts)) + 2 * (len(texts) - 1) <= room
    inner, outer = _new_line(tree, indent + step), _new_line(tree, indent)
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" ") if fits_on_one_line else inner)
    args = [a.with_changes(comma=between) for a in arguments[:-1]]
    last = arguments[-1].with_changes(whitespace_after_arg=outer) if fits_on_one_line else None
    args.append(last or arguments[-1].with_changes(comma=cst.Comma(whitespace_after=outer)))
    return call.with_changes(args=args, whitespace_before_args=inner)


def _new_line(tree: cst.Module, indent: str) -> cst.ParenthesizedWhitespace:
    newline = cst.TrailingWhitespace(newline=cst.Newline(None))
    return cst.ParenthesizedWhitespace(first_line=newline, indent=True, last_line=cst.SimpleWhitespace(indent))


def _with_parentheses(value: cst.BaseExpression) -> cst.BaseExpression:
    """Adds the parentheses that a generator expression needs if it is not the only argument."""
    if not isinstance(value, cst.GeneratorExp) or value.lpar:
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def remove_argument(call: cst.Call, index: int) -> cst.Call:
    """Returns `call` without the argument at `index`. The end of the argument list keeps its format."""
    args = list(call.args)
    removed = args.pop(index)
    if not args:
        return call.with_changes(args=[], whitespace_before_args=_NO_SPACE)
    if index == len(args):
        last = args[-1]
        args[-1] = last.with_changes(
            comma=_final_comma(last, removed), whitespace_after_arg=removed.whitespace_after_arg
        )
    return call.with_changes(args=args)


def _final_comma(last: cst.Arg, removed: cst.Arg) -> cst.Comma | cst.MaybeSentinel:
    """The comma after the new last argument: the comma of the removed one, with the comment of its own line."""
    own, removed_whitespace = (
        getattr(last.comma, "whitespace_after", None),
        getattr(removed.comma, "whitespace_after", None),
    )
    if not isinstance(removed.comma, cst.Comma) or not isinstance(removed_whitespace, cst.ParenthesizedWhitespace):
        return removed.comma
    line_break = _only_line_break(removed_whitespace)
    if isinstance(own, cst.ParenthesizedWhitespace):
        line_break = line_break.with_changes(first_line=own.first_line)
    return removed.comma.with_changes(whitespace_after=line_break)
