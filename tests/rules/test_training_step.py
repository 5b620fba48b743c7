"""Rules about the training step: what is found and advised, and that an edited script trains to the same losses."""

from __future__ import annotations

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten, source


def found(text: str) -> list[tuple[str, str, int]]:
    """(code, status, line) of what is found, without what is declined."""
    return [(f.code, f.status, f.line) for f in findings(text) if f.status != "declined"]


def statuses(text: str, code: str) -> list[str]:
    return [f.status for f in findings(text) if f.code == code]


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
    assert expected in after and rewritten(after) == after
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
def test_an_optimizer_is_known_by_what_it_was_imported_as(text: str) -> None:
    assert [(f.code, f.status) for f in findings(text + "\n")] == [("AF601", "safe")]
    assert "(p, fused=True)" in rewritten(text + "\n")


@pytest.mark.parametrize("given", ["**options", "*arguments"])
def test_what_a_star_holds_is_told_and_not_edited(given: str) -> None:
    text = f"import torch\no = torch.optim.AdamW({given})\n"
    (finding,) = findings(text)
    assert finding.status == "declined" and f"`{given}`" in finding.reason and rewritten(text) == text


def test_a_generator_of_parameters_gets_its_parentheses() -> None:
    text = "import torch\no = torch.optim.Adam(p for p in ps)\n"
    assert rewritten(text) == "import torch\no = torch.optim.Adam((p for p in ps), fused=True)\n"


# Loaders.

LOADER = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def train(model, dataset, options, tensors, device="cuda"):
        arrays = TensorDataset(*tensors)
        for x, y in {loader}:
            model(x.to(device), y.to(device)).backward()
"""


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        ("DataLoader(dataset)", ["report", "unsafe"]),
        ("DataLoader(dataset, 32, True, num_workers=4)", ["unsafe", "unsafe"]),
        ("DataLoader(dataset, 32, True, None, None, 4, None, True)", ["unsafe"]),
        ("DataLoader(dataset, num_workers=4, pin_memory=True)", ["unsafe"]),
        ("DataLoader(dataset, num_workers=options.workers)", ["report", "unsafe"]),
        ("DataLoader(dataset, num_workers=4, persistent_workers=True, collate_fn=options.collate)", ["report"]),
        ("DataLoader(arrays, pin_memory=True)", []),
        ("DataLoader(list(range(10)), pin_memory=True)", []),
        ("DataLoader(dataset, num_workers=options.workers, pin_memory=True)", []),
        ("DataLoader(dataset, num_workers=0, pin_memory=False)", []),
        ("DataLoader(dataset, num_workers=4, pin_memory=True, persistent_workers=False)", []),
    ],
)
def test_a_loader_is_given_what_it_lacks_and_no_choice_is_overruled(loader: str, expected: list[str]) -> None:
    assert sorted(statuses(LOADER.format(loader=loader), "AF602")) == expected


def test_options_that_are_put_together_elsewhere_are_declined() -> None:
    text = LOADER.format(loader="DataLoader(dataset, num_workers=4, **options)")
    assert set(statuses(text, "AF602")) == {"declined"}


def test_workers_of_an_unknown_number_are_advised_in_the_words_of_the_file() -> None:
    text = LOADER.format(loader="DataLoader(dataset, num_workers=options.workers)")
    assert any("persistent_workers=options.workers > 0" in f.advice for f in findings(text))


@pytest.mark.parametrize("origin", ["torch_geometric.loader", "mine", "monai.data"])
def test_a_loader_that_is_not_torchs_is_none_of_our_business(origin: str) -> None:
    text = LOADER.replace("torch.utils.data import DataLoader, TensorDataset", f"{origin} import DataLoader")
    assert statuses(text.format(loader="DataLoader(dataset)"), "AF602") == []


def test_batches_that_stay_on_the_cpu_need_no_pinning() -> None:
    text = """
        from torch import nn
        from torch.utils.data import DataLoader

        model = nn.Linear(2, 1)
        for x in DataLoader(dataset, batch_size=8):
            model(x).sum().backward()
    """
    assert statuses(text, "AF602") == []


# Gradients.


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("o.zero_grad(set_to_none=False)", "o.zero_grad()"),
        ("o.zero_grad(\n        set_to_none=False,\n    )", "o.zero_grad()"),
        ("self.o.zero_grad(False)", "self.o.zero_grad()"),
    ],
)
def test_zeros_are_let_go_on_request(call: str, after: str) -> None:
    text = f"import torch\n\ndef f(self, o):\n    {call}  # anew\n"
    assert found(text) == [("AF605", "unsafe", 4)]
    assert rewritten(text) == f"import torch\n\ndef f(self, o):\n    {after}  # anew\n"


def test_a_comment_beside_an_argument_that_goes_stays() -> None:
    text = "import torch\n\ndef f(o):\n    o.zero_grad(\n        set_to_none=False,  # keep\n    )\n"
    assert rewritten(text) == "import torch\n\ndef f(o):\n    # keep\n    o.zero_grad()\n"


def test_gradients_that_are_read_are_only_told() -> None:
    text = "import torch\n\ndef f(o, p):\n    o.zero_grad(set_to_none=False)\n    return p.grad.norm()\n"
    (finding,) = findings(text)
    assert finding.status == "report" and "line 5" in finding.message and rewritten(text) == text


@pytest.mark.parametrize("call", ["o.zero_grad()", "o.zero_grad(set_to_none=True)", "o.zero_grad(set_to_none=flag)"])
def test_other_ways_to_clear_gradients_are_left_alone(call: str) -> None:
    assert findings(f"import torch\n\ndef f(o, flag):\n    {call}\n") == []
