"""Computes what a step loses while its GPU computes: unfused kernels, the memory's bandwidth, unused units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from autofuse.profiling.trace.categories import short_name
from autofuse.profiling.trace.diagnosis.fusing import Fusible
from autofuse.profiling.trace.diagnosis.limits import Limits
from autofuse.profiling.trace.diagnosis.losses import Loss, milliseconds, percent, times
from autofuse.profiling.trace.diagnosis.optimizer_losses import fuse_optimizer_text
from autofuse.profiling.trace.diagnosis.words import maker, matrix_units
from autofuse.profiling.trace.scope import Scope
from autofuse.results.diagnosis import Action, Confidence

WELL_USED = 0.5  # fraction of the peak for products and attention: real steps of good code reach 0.5 to 0.75
FEW_SMS = 0.6  # kernels that have blocks for a smaller fraction of the SMs do not fill the GPU
_SCALAR = 0.5  # fraction of the products' time that runs outside of tensor cores
_FASTER = 4.0  # assumed speedup of bf16 on tensor cores over float32 without; data sheets say 8 to 16


def fusing_loss(scope: Scope, found: Sequence[Fusible], limits: Limits) -> Loss:
    """Return how much longer kernels in a row take than one kernel in their place would."""
    step = scope.steps.seconds
    saved = {kind: scope.seconds(sum(s.saved for s in found if s.kind == kind)) for kind in _FUSIBLE_KINDS}
    taken = {kind: scope.seconds(sum(s.nanoseconds for s in found if s.kind == kind)) for kind in _FUSIBLE_KINDS}
    total = sum(saved.values())
    actions = []
    for kind in sorted(_FUSIBLE_KINDS, key=lambda k: -saved[k]):
        if saved[kind]:
            sequences = [s for s in found if s.kind == kind]
            actions.append(_fusing_action(kind, sequences, saved[kind], taken[kind], scope))
    best = max(_FUSIBLE_KINDS, key=lambda k: saved[k])
    moved = f"{percent(scope.seconds(limits.memory), step)} of the step only reads and writes memory"
    sentence = (
        f"Unfused kernels: {moved}, and {_DESCRIPTIONS[best]}; fusing saves up to {percent(total, step)} of the step."
    )
    return Loss("fusable", total, sentence, tuple(actions))


_FUSIBLE_KINDS: tuple[Literal["attention", "chain", "optimizer"], ...] = ("attention", "chain", "optimizer")
_DESCRIPTIONS = {
    "attention": "attention is not fused",
    "chain": "many of them run in a row",
    "optimizer": "the optimizer is not fused",
}


def _fusing_action(kind: str, found: Sequence[Fusible], saved: float, taken: float, scope: Scope) -> Action:
    count = len(found) / scope.steps.count
    each = sum(len(s.kernels) for s in found) / len(found)
    example = " -> ".join(short_name(k.name)[:40] for k in max(found, key=lambda s: s.nanoseconds).kernels[:6])
    confidence: Confidence = "high"
    if kind == "attention":
        evidence = f"unfused attention: {each:.0f} kernels, {count:,.0f} times a step, {times(taken)}: {example}"
        text = "Fuse attention: autofuse.optimize(model), or call torch.nn.functional.scaled_dot_product_attention."
    elif kind == "optimizer":
        evidence = f"{each / max(1, scope.steps.count):,.0f} kernels of the optimizer a step, {times(taken)}"
        text = fuse_optimizer_text(scope)
    else:
        evidence = (
            f"{count:,.0f} runs of {each:.0f} kernels that move data, {times(taken)} a step; the longest: {example}"
        )
        text = (
            "Fuse kernels in a row (norms, activations, dropout, residuals): autofuse.optimize(model), "
            "or torch.compile(model)."
        )
        confidence = "medium"
    return Action(f"fuse-{kind}", text, milliseconds(saved), evidence, confidence)


def busy_loss(scope: Scope, limits: Limits) -> Loss:
    """Return the loss to memory bandwidth or to arithmetic, whichever takes longer."""
    arithmetic, memory = scope.seconds(limits.arithmetic), scope.seconds(limits.memory)
    return _loss_to_memory(scope, limits) if memory > arithmetic else _loss_to_arithmetic(scope, limits)


def _loss_to_memory(scope: Scope, limits: Limits) -> Loss:
    step, memory, weights = scope.steps.seconds, scope.seconds(limits.memory), scope.seconds(limits.weights)
    evidence = f"{times(memory)} of a step of {times(step)} in kernels that move more than they compute"
    if weights > 0.5 * memory:
        sentence = (
            f"Memory-bound: {percent(memory, step)} of the step reads weights for products of few "
            "rows; the bandwidth of "
            "the GPU's memory is the limit."
        )
        actions = (
            Action(
                "larger-batch",
                "Process more sequences at once: the weights are read once for all of them.",
                None,
                evidence,
                "high",
            ),
            Action(
                "quantize",
                "Quantise the weights (int8 or int4, torchao): half or a quarter of the bytes are read.",
                milliseconds(0.5 * weights),  # int8 has half the bytes of bfloat16
                evidence,
                "medium",
            ),
        )
        return Loss("memory", memory, sentence, actions)
    name, longest = limits.longest[0], limits.longest[1]
    sentence = (
        f"Memory-bound: {percent(memory, step)} of the step is in kernels that move data and "
        "hardly compute; the bandwidth "
        "of the GPU's memory is the limit."
    )
    details = f"{evidence}; most in {short_name(name)[:60]} ({percent(scope.seconds(longest), step)})"
    action = Action(
        "move-less",
        "Move fewer bytes: fuse kernels in a row (autofuse.optimize(model), "
        "torch.compile(model)) "
        "and compute in bf16 (torch.autocast(device_type, dtype=torch.bfloat16)).",
        None,
        details,
        "medium",
    )
    return Loss("memory", memory, sentence, (action,))


def _loss_to_arithmetic(scope: Scope, limits: Limits) -> Loss:
    if limits.tensor < (1 - _SCALAR) * limits.arithmetic and limits.tensor_cores:
        return _loss_without_tensor_cores(scope, limits)
    if limits.single > _SCALAR * limits.arithmetic:
        return _loss_to_single_precision(scope, limits)
    if limits.sms is not None and limits.sms < FEW_SMS:
        return _loss_to_idle_multiprocessors(scope, limits, limits.sms)
    return _loss_below_peak(scope, limits)


def _loss_without_tensor_cores(scope: Scope, limits: Limits) -> Loss:
    step, arithmetic = scope.steps.seconds, scope.seconds(limits.arithmetic)
    scalar = scope.seconds(limits.arithmetic - limits.tensor)
    sentence = (
        f"Compute-bound at low utilisation: {percent(arithmetic, step)} of the step multiplies matrices, "
        f"{percent(scalar, arithmetic)} of that without {matrix_units(scope)} (float32 arithmetic)."
    )
    text = f"Use {matrix_units(scope)}: torch.autocast(device_type, dtype=torch.bfloat16)"
    if "tensorfloat32" in (limits.peak.flops if limits.peak else {}) or maker(scope) == "nvidia":
        text += ', or for float32 torch.set_float32_matmul_precision("high")'
    evidence = f"{times(scalar)} of a step of {times(step)} in kernels of float32 arithmetic"
    saved = milliseconds(scalar * (1 - 1 / _FASTER))
    return Loss("compute", arithmetic, sentence, (Action("bf16", f"{text}.", saved, evidence, "high"),))


def _loss_to_single_precision(scope: Scope, limits: Limits) -> Loss:
    step, arithmetic, single = scope.steps.seconds, scope.seconds(limits.arithmetic), scope.seconds(limits.single)
    sentence = (
        f"Compute-bound: {percent(arithmetic, step)} of the step multiplies matrices, "
        f"{percent(single, arithmetic)} of that in float32."
    )
    text = "Compute in half precision: torch.autocast(device_type, dtype=torch.bfloat16)."
    evidence = f"{times(single)} of a step of {times(step)} in kernels of float32 arithmetic"
    return Loss("compute", arithmetic, sentence, (Action("bf16", text, None, evidence, "medium"),))


def _loss_to_idle_multiprocessors(scope: Scope, limits: Limits, sms: float) -> Loss:
    busy = scope.seconds(limits.arithmetic + limits.memory)
    sentence = (
        f"Compute-bound at low utilisation: kernels run {percent(busy, scope.steps.seconds)} of the step, on "
        f"{sms:.0%} of the GPU's multiprocessors."
    )
    text = "Make the batch larger, or the sequences: kernels have too few blocks to fill the GPU."
    evidence = (
        f"by launch shapes {sms:.1%} of the multiprocessors have a block; most time in "
        f"{short_name(limits.longest[0])[:60]}"
    )
    action = Action("larger-batch", text, milliseconds(busy * (1 - sms / FEW_SMS)), evidence, "high")
    return Loss("compute", scope.seconds(limits.arithmetic), sentence, (action,))


def _loss_below_peak(scope: Scope, limits: Limits) -> Loss:
    arithmetic = scope.seconds(limits.arithmetic)
    share = f"{percent(arithmetic, scope.steps.seconds)} of the step multiplies matrices"
    if limits.achieved is None:
        return Loss("compute", arithmetic, _sentence_without_peak(scope, limits, share))
    reached = percent(limits.achieved, 1.0)
    if limits.achieved >= WELL_USED:
        sentence = f"Compute-bound and well used: {share}, at {reached} of the GPU's peak; nothing is left to do."
        return Loss("compute", arithmetic, sentence)
    sentence = f"Compute-bound at low utilisation: {share}, at {reached} of the GPU's peak."
    text = (
        "Make matrix products larger: use a larger batch, make widths and the vocabulary multiples of 64 (128 for "
        "fp8), and merge small products."
    )
    evidence = f"FLOPs of recorded shapes / {times(arithmetic)} / the peak of {limits.device}"
    saved = milliseconds(arithmetic * (1 - limits.achieved / WELL_USED))
    return Loss("compute", arithmetic, sentence, (Action("larger-products", text, saved, evidence, "medium"),))


def _sentence_without_peak(scope: Scope, limits: Limits, share: str) -> str:
    if not limits.tensor_cores:
        return f"Compute-bound: {share}; nothing that the trace shows is left to do."
    return (
        f"Compute-bound and well used as far as the trace shows: {share}, on {matrix_units(scope)} and all "
        "multiprocessors; nothing is left but to compute less."
    )
