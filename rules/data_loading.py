"""Data loading: the processes that load batches, and the memory from which these are copied to the device.

If the training process loads the batches itself, the GPU waits for every batch. If a DataLoader restarts its workers
for every epoch, the GPU waits for their start. Batches in page-locked memory are copied faster, and while the GPU
computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.rule import Call, CallRule, Fused, Holds, Kept, Unknown, Verdict

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class _LoaderRule(CallRule):
    """The base of the rules about torch's DataLoader."""

    calls = ("torch.utils.data.DataLoader",)
    parameters = tuple(
        """
        dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout
        worker_init_fn multiprocessing_context
    """.split()
    )

    @staticmethod
    def in_memory(call: Call) -> bool:
        """Whether the dataset is in memory, so that workers would only pass copies around."""
        return call.made_by("dataset").rpartition(".")[2] in ("TensorDataset", "list", "range")


class PageableBatches(_LoaderRule):
    """A DataLoader whose batches are copied to the GPU from pageable memory."""

    code = "AF602"
    unless = ("pin_memory",)

    @staticmethod
    def before(dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, **options)

    @staticmethod
    def after(dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, pin_memory=True, **options)

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if call.accelerator is False or not call.mentions("cuda", "device") or call.given("batch_size") == "None":
            return None  # without batching, pinning turns tuples into lists
        if call.given("collate_fn") is not None:
            return Unknown(
                "the text does not show what `collate_fn` returns",
                advice="write `pin_memory=True` if it returns CPU tensors in a list or a dict: pinning turns a "
                "tuple into a list, and an object of another class needs a `pin_memory` method",
            )
        return Holds("unsafe", "assumes that the dataset returns CPU tensors, and that they are copied to a GPU")

    examples = (
        Fused(
            "batches are copied to the GPU",
            before="""
                from torch.utils.data import DataLoader

                def train(model, dataset):
                    for x, y in DataLoader(dataset, batch_size=64, num_workers=4, persistent_workers=True):
                        model(x.cuda(non_blocking=True), y.cuda(non_blocking=True)).backward()
            """,
            after="num_workers=4, persistent_workers=True, pin_memory=True)",
        ),
        Kept(
            "the batches are pinned already",
            """
                import torch
                from torch.utils.data import DataLoader

                def loader_of(dataset):
                    device = "cuda"
                    return DataLoader(dataset, batch_size=64, pin_memory=torch.cuda.is_available(), num_workers=4)
            """,
        ),
        Kept(
            "the DataLoader is not torch's",
            """
                import torch
                from torch_geometric.loader import DataLoader

                loader = DataLoader(graphs, batch_size=64)
                device = torch.device("cuda")
            """,
        ),
    )


class WorkersMadeAnew(_LoaderRule):
    """A DataLoader that restarts its workers for every epoch."""

    code = "AF602"
    unless = ("persistent_workers",)

    @staticmethod
    def before(dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, **options)

    @staticmethod
    def after(dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, persistent_workers=True, **options)

    @staticmethod
    def at(call: Call) -> Verdict | None:
        workers = call.given("num_workers")
        if workers is None or call.literal("num_workers") == 0 or call.iterated_once:
            return None
        if not isinstance(call.literal("num_workers"), int):
            if call.given("pin_memory") is not None:  # the author has tuned this loader
                return None
            return Unknown(
                "the text does not show whether it has workers",
                advice=f"write `persistent_workers={workers} > 0`, unless the dataset changes between epochs: "
                "persistent workers keep their copy of it",
            )
        return Holds(
            "unsafe",
            "assumes that the dataset does not change between epochs, and that workers need no new seed for each epoch",
        )

    examples = (
        Fused(
            "four workers are started for every epoch",
            before="""
                from torch.utils.data import DataLoader

                def loader_of(dataset):
                    return DataLoader(dataset, batch_size=64, num_workers=4)
            """,
            after="DataLoader(dataset, batch_size=64, num_workers=4, persistent_workers=True)",
        ),
        Kept(
            "without workers, torch raises an error for `persistent_workers=True`",
            """
                from torch.utils.data import DataLoader

                def loader_of(dataset):
                    return DataLoader(dataset, batch_size=64, num_workers=0)
            """,
        ),
        Kept(
            "the DataLoader is created in the loop, so persistent workers would not outlive it",
            """
                from torch.utils.data import DataLoader

                def train(model, dataset):
                    for batch in DataLoader(dataset, batch_size=64, num_workers=4):
                        model(batch).backward()
            """,
        ),
        Kept(
            "the DataLoader is iterated once",
            """
                from torch.utils.data import DataLoader

                def evaluate(model, dataset):
                    loader = DataLoader(dataset, batch_size=64, num_workers=4)
                    return [model(batch) for batch in loader]
            """,
        ),
        Kept(
            "the text does not show the options",
            """
                from torch.utils.data import DataLoader

                def loader_of(dataset, options):
                    return DataLoader(dataset, num_workers=4, **options)
            """,
        ),
    )


class NoWorkers(_LoaderRule):
    """A DataLoader that loads every batch in the training process."""

    code = "AF602"
    unless = ("num_workers",)
    hint = "backward"

    @staticmethod
    def before(dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, **options)

    @staticmethod
    def after(dataset: Any, workers: int, **options: Any) -> DataLoader[Any]:
        return DataLoader(dataset, num_workers=workers, persistent_workers=True, prefetch_factor=4, **options)

    @staticmethod
    def at(call: Call) -> Verdict | None:
        special = call.starred or call.given("collate_fn") or call.mentions("IterableDataset")
        if special or _LoaderRule.in_memory(call) or call.accelerator is False:
            return None
        return Unknown(
            "the GPU waits meanwhile",
            advice="write `num_workers=4, persistent_workers=True`, and a `prefetch_factor` above 2 if loading times "
            "vary, unless the dataset is an array in memory",
        )

    examples = (
        Fused(
            "the default is `num_workers=0`",
            before="""
                from torch.utils.data import DataLoader

                def train(model, images):
                    for x in DataLoader(images, batch_size=64, shuffle=True, pin_memory=True):
                        model(x.cuda()).backward()
            """,
        ),
        Kept(
            "tensors in memory need no workers",
            """
                from torch.utils.data import DataLoader, TensorDataset

                def train(model, x):
                    dataset = TensorDataset(x)
                    for (x,) in DataLoader(dataset, batch_size=64, pin_memory=True):
                        model(x.cuda()).backward()
            """,
        ),
    )
