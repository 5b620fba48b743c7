"""Optimizer calls without `fused=True`, in all kinds of places."""

from __future__ import annotations

import pytest

from tests.source.rewriting import findings, rewritten, source


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.optim.AdamW(p, lr=1e-3)", "torch.optim.AdamW(p, lr=1e-3, fused=True)"),
        ("torch.optim.Adam(p)", "torch.optim.Adam(p, fused=True)"),
        (
            "torch.optim.Adam(\n    p,\n    lr=1,  # rate\n)",
            "torch.optim.Adam(\n    p,\n    lr=1,  # rate\n    fused=True,\n)",
        ),
        ("torch.optim.Adam(\n    p, lr=1\n)", "torch.optim.Adam(\n    p, lr=1, fused=True\n)"),
        ("torch.optim.Adam(\n    p\n)", "torch.optim.Adam(\n    p,\n    fused=True\n)"),
    ],
)
def test_the_new_argument_is_formatted_like_the_others(before: str, after: str) -> None:
    assert rewritten(f"import torch\no = {before}\n", unsafe=False) == f"import torch\no = {after}\n"


@pytest.mark.parametrize(
    "call",
    [
        "torch.optim.AdamW(p, fused=False)",
        "torch.optim.AdamW(p, foreach=True)",
        "torch.optim.AdamW(p, capturable=True)",
        "torch.optim.RMSprop(p)",
        "getattr(torch.optim, name)(p)",
        "mine.optim.AdamW(p)",
    ],
)
def test_a_call_with_a_conflicting_argument_stays(call: str) -> None:
    assert findings(f"import torch\no = {call}\n") == []


def test_a_parameter_that_shadows_the_import_is_ignored() -> None:
    assert findings("from torch.optim import AdamW\n\n\ndef f(AdamW, p):\n    return AdamW(p)\n") == []


def test_findings_in_module_code_and_methods_have_the_right_symbols() -> None:
    found = findings(
        source("""
        from torch import optim

        o = optim.Adam(p)

        class Trainer:
            def setup(self):
                self.o = optim.SGD(self.p, lr=1)
    """)
    )
    assert [(f.symbol, f.status, f.line) for f in found] == [("<module>", "safe", 3), ("Trainer.setup", "unsafe", 7)]
