"""Gives new names to operands of a call that no name holds where the call stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofuse.ir.graph import Value, ancestors
from autofuse.match.site import Site
from autofuse.source.capture.captured import ValuePosition, is_unconditional
from autofuse.source.capture.imports import Imports
from autofuse.source.capture.lambdas import is_expression_function
from autofuse.source.place.branches import Branch, KeptName, branches_before, values_to_keep
from autofuse.source.place.call_edit import CallEdit, NewName
from autofuse.source.place.edits import Edit, NewText, span_of
from autofuse.source.place.function import EditedFunction
from autofuse.source.place.helper_text import text_before_call
from autofuse.source.place.statements import own_name
from autofuse.source.targets.printing import unused_name
from autofuse.source.targets.speller import Unwritable, computing_places

_OPERANDS = 6  # at most; each attempt fails at the first operand without a name, so it shows only one of them
_BRANCHES = 4


@dataclass(frozen=True, eq=False)
class EditWithNewNames:
    """Edits of one site in which operands get new names.

    Attributes:
        function: the function.
        site: the site.
        root: the expression that computes the result. The call replaces it.
    """

    function: EditedFunction
    site: Site
    root: ValuePosition

    def before_call(self, reason: Unwritable) -> Edit:
        """Assigns operands to new names where they are computed.

        Args:
            reason: why the call without new names cannot be written.

        Raises:
            Unwritable: new names do not help either.
        """
        self._check_statements_fit(reason)
        bound: list[NewName] = []
        for _ in range(_OPERANDS):
            new = self._name_missing_value(reason, bound)
            if new is None:
                break
            bound.append(new)
            try:
                edit = CallEdit(self.function, self.site, self.root, self.root, bound).make()
            except Unwritable as next_reason:
                reason = next_reason
                continue
            return self._with_own_names(bound) or self._without_new_name(edit, bound)
        raise reason

    def in_branches(self, reason: Unwritable) -> Edit:
        """Assigns values that only a branch can name to new names in that branch. The rest is as in `before_call`."""
        self._check_statements_fit(reason)
        statements = self.function.statements
        branches = [
            branch
            for branch in branches_before(
                self.function.captured, self.function.view, self.site, self.root, statements.blocks
            )
            if statements.starts_line(branch.statement)
        ]
        kept: list[KeptName] = []
        for _ in range(_BRANCHES):
            new_name = self._name_in_branch(branches, reason, kept)
            if new_name is None:
                break
            kept.append(new_name)
            try:
                return CallEdit(self.function, self.site, self.root, self.root, kept=kept).make()
            except Unwritable as next_reason:
                reason = next_reason
        raise reason

    def _check_statements_fit(self, reason: Unwritable) -> None:
        if is_expression_function(self.function.captured.function):  # a lambda has no statements
            raise reason

    def _name_missing_value(self, reason: Unwritable, bound: Sequence[NewName]) -> NewName | None:
        """A new name for the value that `reason` misses, or for one that is equal to it."""
        missing, named = reason.value, {new.value for new in bound}
        if missing is None or missing in named:
            return None
        view, captures = self.function.view, set(self.site.captures.values())
        # If the value is a part of an operand, the whole operand gets the name.
        operands = [o for v, _ in reversed(reason.within) if v in captures for o in view.originals(v)]
        for value in (*operands, missing, *view.originals(view.of(missing))):
            definition = self._find_definition(value)
            if definition is not None:
                return None if value in named else NewName(value, self._new_name(value, bound), *definition)
        return None

    def _find_definition(self, value: Value) -> tuple[ValuePosition, str | None] | None:
        """A position that computes or names `value` and that always runs before the root, with text from a helper."""
        captured, statements = self.function.captured, self.function.statements
        first_serial = min((v.serial for v in self.site.removed.values), default=0)
        if any(v in self.site.removed.values for v in ancestors(value, since=first_serial)):
            return None
        named = (p for p in captured.positions.get(value, []) if not p.inner)
        places = [*computing_places(captured, value), *named]
        best = next((p for p in places if statements.dominates(p, self.root) and is_unconditional(p)), None)
        if best is not None:
            return best, None
        if (helper := text_before_call(captured, self.function.scope, value)) is None:
            return None
        place, text = helper
        fits = statements.dominates(place, self.root) and statements.starts_line(place.statement)
        return (place, text) if fits else None

    def _new_name(self, value: Value, bound: Sequence[NewName]) -> str:
        originals = self.function.view.originals
        base = next((n for n, c in self.site.captures.items() if value in originals(c)), "operand")
        return unused_name(base, self.function.used_names({new.value: new.name for new in bound}))

    def _with_own_names(self, bound: Sequence[NewName]) -> Edit | None:
        """The edit with the program's own names for `bound`, if only removed statements bind these names again."""
        own = [replace(new, name=own_name(new.at) or new.name) for new in bound]
        if all(a.name == b.name for a, b in zip(own, bound, strict=True)):
            return None
        try:
            return CallEdit(self.function, self.site, self.root, self.root, own).make()
        except Unwritable:
            return None

    def _without_new_name(self, edit: Edit, bound: Sequence[NewName]) -> Edit:
        """Inserts the operand into the call directly, instead of a new name.

        This is done if the only new name would be bound in the line before the call and be its first argument.
        """
        name, place = bound[0].name, bound[0].at
        is_only_one = len(bound) == 1 and len(edit.insertions) == 1
        is_adjacent = self.function.statements.preceding(self.root.statement)[:1] == [place.statement]
        # The old statement must go too, or the operand would be computed twice.
        if not is_only_one or not is_adjacent or span_of(place.statement) not in edit.removals:
            return edit
        operand = edit.insertions[0][1].removeprefix(f"{name} = ")
        replacements = []
        for span, new in edit.replacements:
            text = _with_first_argument(new, name, operand)
            if text is None:
                return edit
            replacements.append((span, text))
        return replace(edit, replacements=tuple(replacements), insertions=())

    def _name_in_branch(
        self, branches: Sequence[Branch], reason: Unwritable, kept: Sequence[KeptName]
    ) -> KeptName | None:
        """A name for the largest part of the missing operand that a statement in one of `branches` can write."""
        known = {(k.value, k.branch.test, k.branch.truth) for k in kept}
        for branch in reversed(branches):
            for value in values_to_keep(reason, branch, self.site.captures.values()):
                is_known = (value, branch.test, branch.truth) in known
                if not is_known and self._can_write(value, branch):
                    taken = self.function.used_names({}) | {k.name for k in kept}
                    return KeptName(value, unused_name("attn_mask", taken), branch)
        return None

    def _can_write(self, value: Value, branch: Branch) -> bool:
        """Whether the statement of a branch can write a value."""
        try:
            imports = Imports(self.function.scope, self.function.local_names)
            speller = self.function.make_speller(self.site, branch.place, self.root, imports, {})
            speller.assumed = branch.assumed
            speller.text(value)
        except Unwritable:
            return False
        return True


def _with_first_argument(new: NewText, name: str, operand: str) -> NewText | None:
    """New text with `operand` for the first argument `name`; None if the name is read in another way."""
    if not re.search(rf"\b{name}\b", new.text):
        return new
    call = new.call
    if call is None or call.arguments[:1] != (name,) or new.text != call.text() or call.before:
        return None
    call = replace(call, arguments=(operand, *call.arguments[1:]))
    return None if re.search(rf"\b{name}\b", call.text()) else NewText(call.text(), call)
