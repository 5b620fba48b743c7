"""The words that code looks for when it inspects a function."""

import ast

import pytest

from autofuse.source.evidence.inspected_words import words_looked_for

CASES = {
    "code = getsource(m)\n    return 'get_interface(' in code": {"get_interface"},
    "code = getsource(m)\n    return re.search(r'^class A', code) and 'abc' not in code": {"abc"},
    "code = getsource(m)\n    return re.search(r'class A', code)": None,
    "code = getsource(m)\n    return code.splitlines()[0]": set(),
    "code = getsource(m)\n    return code.splitlines()[1]": None,
    "code = getsource(m)\n    return 'abc' in code, len(code)": None,
    "code = getsource(m)\n    return '(' in code": None,
    "return getsource(m)": None,
    "return 'cache' in m.co_varnames": {"cache"},
    "return m.co_varnames[: m.co_argcount]": set(),
    "return m.co_varnames[:3]": None,
    "for n in ['a', 'b']:\n        m.co_varnames.index(n)": {"a", "b"},
    "for n in ['a', 'b']:\n        table[n] = m.co_varnames.index(n)": {"a", "b"},
    "for n in ['a', 'b']:\n        table[n], n = m.co_varnames.index(n), 1": None,
    "listed = ['a', 'b']\n    for n in listed:\n        m.co_varnames.index(n)": {"a", "b"},
    "listed = ['a']\n    listed.append(m)\n    for n in listed:\n        m.co_varnames.index(n)": None,
    "for n in ['a']:\n        n = m\n        m.co_varnames.index(n)": None,
    "return m.co_consts": None,
}


@pytest.mark.parametrize("body", CASES)
def test_only_a_search_for_literals_has_words(body: str) -> None:
    function = ast.parse(f"def f(m):\n    {body}\n").body[0]
    assert isinstance(function, ast.FunctionDef)
    (inspection,) = [
        n for n in ast.walk(function)
        if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "getsource"
        or isinstance(n, ast.Attribute) and n.attr in ("co_varnames", "co_consts")
    ]  # fmt: skip
    words = words_looked_for(inspection, function)
    assert words == (None if CASES[body] is None else frozenset(CASES[body]))
