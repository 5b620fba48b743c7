"""Uses of a method for objects of another class."""

import ast

import pytest

from autofuse.source.capture.scope import file_scope
from autofuse.source.evidence.borrowed_methods import find_borrowed_uses
from autofuse.source.evidence.class_names import class_of_statement

USES = {
    "class B:\n    def forward(self, x):\n        return A.forward(self, x)": ["A.forward"],
    "class B:\n    forward = A.forward": ["A.forward"],
    "B.forward = A.forward": ["A.forward"],
    "f = MethodType(A.forward, b)": ["A.forward"],
    "f = A.forward.__get__(b)": ["A.forward"],
    "class A2:\n    def forward(self, x):\n        return self.child.forward(x)": [],
    "original = A.forward": [],
    "inspect.signature(A.forward)": [],
    "B.forward(b, x)": [],
}


@pytest.mark.parametrize("text", USES)
def test_a_method_that_runs_for_another_class_is_found(text: str) -> None:
    scope = file_scope(ast.parse(f"class A:\n    def forward(self, x):\n        return A.forward(self, x)\n{text}\n"))
    family = {class_of_statement(scope.classes["A"].node, scope)}
    assert [ast.unparse(use) for use in find_borrowed_uses(scope, family, "forward")] == USES[text]
