"""The parts of a training step besides the model: updating the parameters and clearing their gradients.

Without `fused=True`, optimizers launch several kernels for an update. Setting gradients to None instead of zero saves a
pass over memory as large as the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.rule import Call, CallRule, Fused, Holds, Kept, Unknown, Verdict

if TYPE_CHECKING:
    import torch

_LIGHTNING = ("lightning", "Lightning")
_COMPLEX = ("cfloat", "cdouble", "chalf", "complex32", "complex64", "complex128", "complex", "polar")
_STORE_PARAMETERS = ("Parameter", "register_parameter", "requires_grad_")
_SPECTRA = ("fft", "rfft", "ihfft", "fftn", "rfftn", "stft")  # complex, if their input is real


def _complex_parameters(call: Call) -> str:
    """The assumption about complex parameters, which a fused update refuses; "" if no file seems to make them."""
    makes_parameters = call.mentions("Parameter", "requires_grad")
    if call.mentions_word(*_COMPLEX) or makes_parameters and call.mentions_word(*_SPECTRA):
        return "no parameter is complex"
    other = call.other_file_mentions(*_COMPLEX, *_SPECTRA, stored_by=_STORE_PARAMETERS)
    return f"no parameter is complex ({other} makes complex numbers)" if other else ""


def _unsupported_device(call: Call) -> str:
    """The assumption about the device of the parameters; "" if no other file computes on an XLA device."""
    other = call.other_file_mentions("xla")
    return f"no parameter is on an XLA device ({other} mentions XLA)" if other else ""


def _assumes(*clauses: str) -> str:
    """The clauses that are not empty, as one: "assumes that a, and that b"."""
    return f"assumes that {', and that '.join(filter(None, clauses))}" if any(clauses) else ""


class UnfusedAdam(CallRule):
    """Adam without `fused=True`."""

    code = "AF601"
    calls = ("torch.optim.Adam", "torch.optim.AdamW")
    unless = ("fused", "foreach", "capturable", "differentiable")

    @staticmethod
    def before(params: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, **options)

    @staticmethod
    def after(params: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, fused=True, **options)

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if call.mentions("torch_xla"):
            return None
        clips = call.mentions(*_LIGHTNING) or call.other_file_mentions("lightning", "Lightning", "LightningModule")
        lightning = "Lightning does not clip gradients in 16-bit mixed precision" if clips else ""
        if assumptions := _assumes(lightning, _complex_parameters(call), _unsupported_device(call)):
            return Holds("unsafe", assumptions)
        return Holds("safe", "for real parameters on a CPU, CUDA, XPU or MPS device")

    examples = (
        Fused(
            "the call does not choose an implementation",
            before="""
                import torch

                def optimizer_of(model):
                    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
            """,
            after="torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)",
        ),
        Kept(
            "the author has chosen another implementation",
            """
                import torch

                def optimizer_of(model):
                    return torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
            """,
        ),
        Kept(
            "the text does not show the options",
            """
                import torch

                def optimizer_of(model, **options):
                    return torch.optim.AdamW(model.parameters(), **options)
            """,
        ),
    )


class UnfusedSgd(CallRule):
    """SGD or Adagrad without `fused=True`."""

    code = "AF601"
    calls = ("torch.optim.SGD", "torch.optim.Adagrad")
    unless = ("fused", "foreach", "differentiable")

    @staticmethod
    def before(params: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, **options)

    @staticmethod
    def after(params: Any, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, fused=True, **options)

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if call.mentions("torch_xla"):
            return None
        sparse = "no gradient is sparse, such as that of `nn.Embedding(sparse=True)`"
        # The constructor of Adagrad makes the sums of squares in the dtype of the parameters.
        dtype = "the parameters keep their dtype afterwards" if "Adagrad" in call.text else ""
        return Holds("unsafe", _assumes(sparse, dtype, _complex_parameters(call), _unsupported_device(call)))

    examples = (
        Fused(
            "the call does not choose an implementation",
            before="""
                from torch.optim import SGD

                def optimizer_of(model):
                    return SGD(model.parameters(), lr=0.1, momentum=0.9)
            """,
            after="SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)",
        ),
        Kept(
            "the class has the same name and is not torch's",
            """
                import torch
                from mine import SGD

                def optimizer_of(model):
                    return SGD(model.parameters(), lr=0.1)
            """,
        ),
    )


class GradientsSetToZero(CallRule):
    """Gradients that are set to zero instead of None."""

    code = "AF605"
    calls = (".zero_grad",)
    parameters = ("set_to_none",)

    @staticmethod
    def before(optimizer: torch.optim.Optimizer) -> None:
        return optimizer.zero_grad(set_to_none=False)

    @staticmethod
    def after(optimizer: torch.optim.Optimizer) -> None:
        return optimizer.zero_grad()

    @staticmethod
    def at(call: Call) -> Verdict | None:
        if line := call.reads("grad"):
            return Unknown(f"`.grad` is read at line {line}", advice="remove the argument if `.grad` may be None there")
        return Holds("unsafe", "assumes that every parameter gets a gradient in every step, and torch 2.0 or later")

    examples = (
        Fused(
            "the default before torch 2.0",
            before="""
                import torch

                def step(optimizer, loss):
                    optimizer.zero_grad(set_to_none=False)
                    loss.backward()
                    optimizer.step()
            """,
            after="optimizer.zero_grad()",
        ),
        Kept(
            "the gradients are set to None",
            """
                import torch

                def step(optimizer, loss):
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
            """,
        ),
    )
