"""How batches come to the device: by which processes, and from which memory.

A loader that works in the training process lets the GPU wait for every batch, and one that starts its workers anew for
every epoch lets it wait for these. Batches in page-locked memory are copied faster, and while the GPU computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.rule import Call, CallRule, Fused, Holds, Kept, Unknown, Verdict

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class _LoaderRule(CallRule):
    """What the rules about torch's DataLoader share."""

    calls = ("torch.utils.data.DataLoader",)
    parameters = tuple(
        """
        dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout
        worker_init_fn multiprocessing_context
    """.split()
    )

    @staticmethod
    def in_memory(call: Call) -> bool:
        """Whether there is nothing to load: workers would only pass copies around."""
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
            return None  # of samples that are not batched, pinning makes lists too
        if call.given("collate_fn") is not None:
            return Unknown(
                "what `collate_fn` gives is not written here",
                advice="write `pin_memory=True` if it gives CPU tensors in a list or a dict: pinning makes a list of a "
                "tuple, and an object of another class needs a `pin_memory` method",
            )
        return Holds("unsafe", "assumes that the dataset gives CPU tensors, and that they go to a GPU")

    examples = (
        Fused(
            "batches go to the GPU",
            before="""
                from torch.utils.data import DataLoader

                def train(model, dataset):
                    for x, y in DataLoader(dataset, batch_size=64, num_workers=4, persistent_workers=True):
                        model(x.cuda(non_blocking=True), y.cuda(non_blocking=True)).backward()
            """,
            after="num_workers=4, persistent_workers=True, pin_memory=True)",
        ),
        Kept(
            "already pinned",
            """
                import torch
                from torch.utils.data import DataLoader

                def loader_of(dataset):
                    device = "cuda"
                    return DataLoader(dataset, batch_size=64, pin_memory=torch.cuda.is_available(), num_workers=4)
            """,
        ),
        Kept(
            "a loader of graphs that is not torch's",
            """
                import torch
                from torch_geometric.loader import DataLoader

                loader = DataLoader(graphs, batch_size=64)
                device = torch.device("cuda")
            """,
        ),
    )


class WorkersMadeAnew(_LoaderRule):
    """A DataLoader that starts its workers anew for every epoch."""

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
            if call.given("pin_memory") is not None:  # its author has thought about it
                return None
            return Unknown(
                "whether it has any is not written here",
                advice=f"write `persistent_workers={workers} > 0`, unless the dataset is changed between epochs: "
                "workers that stay keep their copy of it",
            )
        return Holds(
            "unsafe",
            "assumes that nothing changes the dataset between epochs, and that workers need no new seeds for each",
        )

    examples = (
        Fused(
            "four workers for every epoch",
            before="""
                from torch.utils.data import DataLoader

                def loader_of(dataset):
                    return DataLoader(dataset, batch_size=64, num_workers=4)
            """,
            after="DataLoader(dataset, batch_size=64, num_workers=4, persistent_workers=True)",
        ),
        Kept(
            "no workers: torch raises where these should persist",
            """
                from torch.utils.data import DataLoader

                def loader_of(dataset):
                    return DataLoader(dataset, batch_size=64, num_workers=0)
            """,
        ),
        Kept(
            "made anew for each epoch, so its workers would be as well",
            """
                from torch.utils.data import DataLoader

                def train(model, dataset):
                    for batch in DataLoader(dataset, batch_size=64, num_workers=4):
                        model(batch).backward()
            """,
        ),
        Kept(
            "iterated once",
            """
                from torch.utils.data import DataLoader

                def evaluate(model, dataset):
                    loader = DataLoader(dataset, batch_size=64, num_workers=4)
                    return [model(batch) for batch in loader]
            """,
        ),
        Kept(
            "the options are not written here",
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
            "the GPU waits while it does",
            advice="write `num_workers=4, persistent_workers=True`, with a `prefetch_factor` above 2 where batches "
            "come unevenly, unless the dataset is an array in memory",
        )

    examples = (
        Fused(
            "the default is no worker at all",
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
