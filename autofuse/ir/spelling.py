"""The expressions by which the FX pass and the codemod write operations that the canonical form introduces.

Each entry is a Python expression of its inputs. The codemod prints it, and the FX pass evaluates it. This file knows no
graph.
"""

from __future__ import annotations

# operation -> a template. `{0}` is the first input; `{* + }` is all inputs, joined by ` + `.
SPELLINGS: dict[str, str] = {
    "add": "{* + }",
    "mul": "{* * }",
    "sub": "{0} - {1}",
    "div": "{0} / {1}",
    "floordiv": "{0} // {1}",
    "mod": "{0} % {1}",
    "pow": "{0} ** {1}",
    "number_pow": "{0} ** {1}",
    "neg": "-{0}",
    "reciprocal": "1.0 / {0}",
    "square": "{0} ** 2",
    "sqrt": "{0} ** 0.5",
    "rsqrt": "{0} ** -0.5",
    "number_sqrt": "math.sqrt({0})",
    "number": "float({0})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "invert": "~{0}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "bool": "{0}.bool()",
    "where": "torch.where({0}, {1}, {2})",
    "float32": "{0}.float()",
    "long": "{0}.long()",
    "flat": "{0}.reshape(-1)",
    "finfo": "torch.finfo({0})",
    "item": "{0}[{1}]",
    "real": "{0}.real",
    "imag": "{0}.imag",
    "unsqueeze": "{0}.unsqueeze({1})",
    "refold": "{0}.expand({1}).reshape({2})",
    "tril": "torch.tril({0}, {1})",
    "triu": "torch.triu({0}, {1})",
    "transpose": "{0}.transpose({1}, {2})",
    "is_none": "{0} is None",
    "not": "not {0}",
}
