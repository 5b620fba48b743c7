"""Optimizers and gradients: findings and advice, and edited scripts train to the same losses."""

from __future__ import annotations

import re

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten, source


def statuses(text: str) -> list[tuple[str, str, int]]:
    """(code, status, line) of the findings that are not declined."""
    return [(f.code, f.status, f.line) for f in findings(text) if f.status != "declined"]


# Scripts that run, before and after.

SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, i):
            x = torch.linspace(i, i + 1, 8)
            return x, x.sin()

    def losses(epochs=3, device="cpu" if not torch.cuda.is_available() else "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
        optimizer = {optimizer}
        loader = DataLoader(Points(), {loader})
        told = []
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad({zero})
                loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                told.append(loss.item())
        return told
"""


def script(optimizer: str = "Rprop(model.parameters())", loader: str = "num_workers=0", zero: str = "") -> str:
    return SCRIPT.format(optimizer=f"torch.optim.{optimizer}", loader=loader, zero=zero)


CHANGES = {
    "AdamW": (script("AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)"), "weight_decay=0.1, fused=True)"),
    "Adam with amsgrad": (script("Adam(model.parameters(), 1e-2, amsgrad=True)"), "amsgrad=True, fused=True)"),
    "SGD": (script("SGD(model.parameters(), lr=0.1, momentum=0.9)"), "momentum=0.9, fused=True)"),
    "Adagrad": (script("Adagrad(model.parameters())"), "parameters(), fused=True)"),
    "zeros": (script(zero="set_to_none=False"), "optimizer.zero_grad()"),
    "zeros by position": (script(zero="False"), "optimizer.zero_grad()"),
    "pinned": (script(loader="batch_size=8, num_workers=0"), "num_workers=0, pin_memory=True)"),
    "workers that stay": (
        script(loader="batch_size=8, pin_memory=False, num_workers=1, multiprocessing_context='fork'"),
        "'fork', persistent_workers=True)",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_edited_script_trains_to_the_same_losses(name: str) -> None:
    before, expected = CHANGES[name]
    after = rewritten(before)
    in_one_line = re.sub(r",? *\)", ")", " ".join(after.split()))  # a call may have got too long for its line
    assert expected in in_one_line and rewritten(after) == after
    original, new = (module_of(t).losses() for t in (source(before), after))
    assert len(original) >= 9 and original[-1] != original[0]
    # one update differs by the rounding of float32, and a few dozen follow each other
    torch.testing.assert_close(torch.tensor(new), torch.tensor(original), rtol=1e-4, atol=1e-6)


# Optimizers.


@pytest.mark.parametrize(
    "text",
    [
        "from torch.optim import AdamW\no = AdamW(p)",
        "from torch.optim import AdamW as Optimizer\no = Optimizer(p)",
        "from torch import optim\no = optim.AdamW(p)",
        "import torch.optim as optim\no = optim.AdamW(p)",
        "import torch\no = torch.optim.adamw.AdamW(p)",
        "import torch\n\ndef f(p):\n    from torch.optim import AdamW\n    return AdamW(p)",
        "import torch\nAdamW = torch.optim.AdamW\no = AdamW(p)",
    ],
)
def test_an_optimizer_is_recognised_by_its_import(text: str) -> None:
    assert [(f.code, f.status) for f in findings(text + "\n")] == [("AF601", "safe")]
    assert "(p, fused=True)" in rewritten(text + "\n")


@pytest.mark.parametrize("given", ["**options", "*arguments"])
def test_starred_options_are_reported_and_not_edited(given: str) -> None:
    text = f"import torch\no = torch.optim.AdamW({given})\n"
    (finding,) = findings(text)
    assert finding.status == "declined" and f"`{given}`" in finding.reason and rewritten(text) == text


def test_a_generator_of_parameters_gets_its_parentheses() -> None:
    text = "import torch\no = torch.optim.Adam(p for p in ps)\n"
    assert rewritten(text) == "import torch\no = torch.optim.Adam((p for p in ps), fused=True)\n"


# Gradients.


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("o.zero_grad(set_to_none=False)", "o.zero_grad()"),
        ("o.zero_grad(\n        set_to_none=False,\n    )", "o.zero_grad()"),
        ("self.o.zero_grad(False)", "self.o.zero_grad()"),
    ],
)
def test_setting_to_zero_is_removed_on_request(call: str, after: str) -> None:
    text = f"import torch\n\ndef f(self, o):\n    {call}  # again\n"
    assert statuses(text) == [("AF605", "unsafe", 4)]
    assert rewritten(text) == f"import torch\n\ndef f(self, o):\n    {after}  # again\n"


def test_a_comment_next_to_a_removed_argument_stays() -> None:
    text = "import torch\n\ndef f(o):\n    o.zero_grad(\n        set_to_none=False,  # keep\n    )\n"
    assert rewritten(text) == "import torch\n\ndef f(o):\n    # keep\n    o.zero_grad()\n"


def test_gradients_that_are_read_are_only_reported() -> None:
    text = "import torch\n\ndef f(o, p):\n    o.zero_grad(set_to_none=False)\n    return p.grad.norm()\n"
    (finding,) = findings(text)
    assert finding.status == "report" and "line 5" in finding.message and rewritten(text) == text


@pytest.mark.parametrize("call", ["o.zero_grad()", "o.zero_grad(set_to_none=True)", "o.zero_grad(set_to_none=flag)"])
def test_other_ways_to_clear_gradients_are_left_alone(call: str) -> None:
    assert findings(f"import torch\n\ndef f(o, flag):\n    {call}\n") == []
