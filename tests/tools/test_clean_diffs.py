"""Every class of fault is found, and correct code has none."""

from __future__ import annotations

import pytest

from tools.clean_diffs.changed import changed_functions
from tools.clean_diffs.faults import faults_of, faults_of_file
from tools.clean_diffs.rewriting import RewrittenFile

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
BEFORE = "def f(q, k, v, x):\n    # scores\n    s = q @ k.mT\n    w = s.softmax(-1)  # weights\n\n    return w @ v\n"
AFTER = {
    "": "def f(q, k, v, x):\n    # scores\n    return F.scaled_dot_product_attention(q, k, v)\n",
    "dead assignment": "def f(q, k, v, x):\n    # scores\n    y = x\n    return F.gelu(x)\n",
    "overlong line": "def f(q, k, v, x):\n    # scores\n    return F.gelu(" + "x + " * 40 + "x)\n",
    "needless parentheses": "def f(q, k, v, x):\n    # scores\n    return (F.gelu(x)).view(-1)\n",
    "inverse transposes": "def f(q, k, v, x):\n    # scores\n    return x.transpose(1, 2).transpose(1, 2)\n",
    "cast of a shape": "def f(q, k, v, x):\n    # scores\n    return F.rms_norm(x, x.float().shape[-1:])\n",
    "orphaned comment": "def f(q, k, v, x):\n    # scores\n    # weights\n    return F.gelu(x)\n",
    "double blank line": "def f(q, k, v, x):\n    # scores\n    x = x + 1\n\n\n    return F.gelu(x)\n",
    "numbered name": "def f(q, k, v, x):\n    # scores\n    x_1 = x\n    return F.gelu(x_1)\n",
    "scale=1.0 beside scaling": (
        "def f(q, k, v, x):\n    # scores\n    q = q * 2\n"
        "    return F.scaled_dot_product_attention(q, k, v, scale=1.0)\n"
    ),
    "dropout_p=0.0": (
        "def f(q, k, v, x):\n    # scores\n    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)\n"
    ),
    "mask cast": (
        "def f(q, k, v, x):\n    # scores\n"
        "    return F.scaled_dot_product_attention(q, k, v, attn_mask=x.to(q.dtype))\n"
    ),
}


@pytest.mark.parametrize("fault", AFTER)
def test_each_fault_is_found(fault: str) -> None:
    file = RewrittenFile("model.py", (HEAD + BEFORE).encode(), (HEAD + AFTER[fault]).encode(), ())
    (function,) = changed_functions(file)
    assert set(faults_of(function)) == ({fault} if fault else set())


def test_files_that_are_generated_or_unformatted_are_counted() -> None:
    head = "# Automatically generated from x.py\n"
    file = RewrittenFile(
        "model.py", (head + HEAD + BEFORE).encode(), (head + HEAD + "def f( x):\n    pass\n").encode(), ()
    )
    found = faults_of_file(file)
    assert found["generated file"] and found["changed by ruff"]


@pytest.mark.parametrize(("message", "counted"), [("", 1), ("becomes F.gelu (leaves `torch` without a use)", 0)])
def test_an_import_that_loses_its_use_is_counted_unless_a_message_names_it(message: str, counted: int) -> None:
    before, after = "def f(x):\n    return torch.exp(F.relu(x))\n", "def f(x):\n    return F.gelu(x)\n"
    file = RewrittenFile("model.py", (HEAD + before).encode(), (HEAD + after).encode(), (message,))
    assert faults_of_file(file)["import without a use, unnamed"] == counted
