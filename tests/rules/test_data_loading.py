"""Rules about DataLoader: missing options are added, and the author's choices are kept."""

from __future__ import annotations

import pytest

from tests.source.rewriting import findings


def statuses(text: str, code: str) -> list[str]:
    return [f.status for f in findings(text) if f.code == code]


LOADER = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def train(model, dataset, options, tensors, device="cuda"):
        arrays = TensorDataset(*tensors)
        loader = {loader}
        for epoch in range(3):
            for x, y in loader:
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
def test_missing_options_are_added_and_choices_are_kept(loader: str, expected: list[str]) -> None:
    assert sorted(statuses(LOADER.format(loader=loader), "AF602")) == expected


ITERATED = {
    "for x in DataLoader(dataset, num_workers=4): step(x)": False,
    "for i, x in enumerate(DataLoader(dataset, num_workers=4)): step(x)": False,
    "for e in range(3):\n        for x in DataLoader(dataset, num_workers=4): step(x)": False,
    "loader = DataLoader(dataset, num_workers=4)\n    return [step(x) for x in loader]": False,
    "loader = DataLoader(dataset, num_workers=4)\n    for x in tqdm(loader, desc='x'): step(x)": False,
    "for e in range(3):\n        loader = DataLoader(dataset, num_workers=4)\n        for x in loader: step(x)": False,
    "loader = DataLoader(dataset, num_workers=4)\n    for e in range(3):\n        for x in loader: step(x)": True,
    "loader = DataLoader(dataset, num_workers=4)\n    step(len(loader))\n    for x in loader: step(x)": True,
    "loader = DataLoader(dataset, num_workers=4)\n    return loader": True,
    "self.loader = DataLoader(dataset, num_workers=4)\n    for x in self.loader: step(x)": True,
    "loader = DataLoader(dataset, num_workers=4)\n    while step(0):\n        for x in loader: step(x)": True,
}


@pytest.mark.parametrize("text", ITERATED)
def test_a_loader_that_is_iterated_once_needs_no_persistent_workers(text: str) -> None:
    whole = f"import torch\nfrom torch.utils.data import DataLoader\n\n\ndef run(self, dataset, step):\n    {text}\n"
    assert ("unsafe" in statuses(whole, "AF602")) is ITERATED[text]


def test_options_that_are_built_elsewhere_are_declined() -> None:
    text = LOADER.format(loader="DataLoader(dataset, num_workers=4, **options)")
    assert set(statuses(text, "AF602")) == {"declined"}


def test_an_unknown_number_of_workers_gets_advice_with_its_expression() -> None:
    text = LOADER.format(loader="DataLoader(dataset, num_workers=options.workers)")
    assert any("persistent_workers=options.workers > 0" in f.advice for f in findings(text))


@pytest.mark.parametrize("origin", ["torch_geometric.loader", "mine", "monai.data"])
def test_a_loader_that_is_not_torchs_is_ignored(origin: str) -> None:
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
