"""Actions against exposed communication, by kind of collective: names and texts, the best first."""

from __future__ import annotations

_ACCUMULATE = (
    "accumulate",
    (
        "Communicate less often: accumulate gradients over several batches within "
        "model.no_sync(), or make the batch larger."
    ),
)
_HALF = (
    "compress",
    "Send half as much: gradients in bf16 (bf16_compress_hook of torch.distributed.algorithms.ddp_comm_hooks).",
)
REMEDIES: dict[str, tuple[tuple[str, str], ...]] = {
    "sendrecv": (
        (
            "microbatches",
            (
                "Cut the batch into more microbatches, or use an interleaved or zero-bubble schedule "
                "(torch.distributed.pipelining)."
            ),
        ),
        ("overlap", "Post receives ahead of their use (batch_isend_irecv), on a stream of their own."),
    ),
    "reducescatter": (
        (
            "overlap",
            (
                "Overlap: FSDP with backward_prefetch=BACKWARD_PRE and forward_prefetch=True, "
                "fully_shard on every block; reduce in bf16 "
                "(MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))."
            ),
        ),
        (
            "shard-less",
            (
                "Shard within a node only (HSDP: a two-dimensional device mesh), or keep weights after "
                "the forward (reshard_after_forward=False)."
            ),
        ),
        _ACCUMULATE,
    ),
    "allgather": (
        (
            "overlap",
            (
                "Overlap: FSDP with forward_prefetch=True and backward_prefetch=BACKWARD_PRE, "
                "fully_shard on every block, so that the next block's weights come while this one "
                "computes."
            ),
        ),
        (
            "shard-less",
            (
                "Shard within a node only (HSDP: a two-dimensional device mesh), or keep weights after "
                "the forward (reshard_after_forward=False)."
            ),
        ),
        _ACCUMULATE,
    ),
    "alltoall": (
        (
            "overlap",
            (
                "Overlap the exchange of tokens with computing: split the batch in two and exchange one "
                "half while the other computes; keep experts within a node."
            ),
        ),
        ("compress", "Send tokens in bf16 or fp8."),
    ),
    "allreduce": (
        (
            "overlap",
            (
                "Overlap gradients with the backward pass: DistributedDataParallel with bucket_cap_mb so "
                "that buckets are ready early, and no collective on the compute stream."
            ),
        ),
        _HALF,
        _ACCUMULATE,
    ),
}
