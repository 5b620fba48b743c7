"""Hand-written MLPs -> one operation. If a kernel supports it, the wide intermediate result is never stored.

Gated MLPs are SwiGLU, GeGLU and ReGLU (Shazeer, arXiv:2002.05202), with two projections, or one that is chunked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.rule import Captures, Fused, Holds, Kept, Rule, Verdict

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from autofuse import ops


class GatedMlp(Rule):
    """A gated MLP: two projections and the gate."""

    code = "AF303"
    benefit = 4

    @staticmethod
    def before(
        x: Tensor, activation: str, gate_weight: Tensor, up_weight: Tensor, gate_bias: Tensor | None,
        up_bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        # Any activation matches, also hand-written: autofuse/canonical/recognise/activations.py.
        return ops.activation(F.linear(x, gate_weight, gate_bias), activation) * F.linear(x, up_weight, up_bias)

    @staticmethod
    def after(
        x: Tensor, activation: str, gate_weight: Tensor, up_weight: Tensor, gate_bias: Tensor | None,
        up_bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        return ops.gated_mlp(x, gate_weight, up_weight, gate_bias=gate_bias, up_bias=up_bias, activation=activation)

    examples = (
        Fused(
            "SwiGLU: one projection is activated and gates the other",
            before="""
                import torch.nn.functional as F
                from torch import nn

                class Mlp(nn.Module):
                    def __init__(self, dim: int, hidden: int):
                        super().__init__()
                        self.gate = nn.Linear(dim, hidden, bias=False)
                        self.up = nn.Linear(dim, hidden, bias=False)
                        self.down = nn.Linear(hidden, dim, bias=False)

                    def forward(self, x):
                        return self.down(F.silu(self.gate(x)) * self.up(x))
            """,
        ),
        Kept(
            "the two projections read different inputs",
            """
                import torch.nn.functional as F
                from torch import nn

                class Mix(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.gate = nn.Linear(dim, dim)
                        self.up = nn.Linear(dim, dim)

                    def forward(self, x, y):
                        return F.silu(self.gate(x)) * self.up(y)
            """,
        ),
    )


class SigmoidGatedMlp(Rule):
    """A gated MLP with a sigmoid gate: two projections and the gate."""

    code = "AF303"
    benefit = 4

    @staticmethod
    def before(
        x: Tensor, gate_weight: Tensor, up_weight: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None
    ) -> Tensor:  # fmt: skip
        # A hand-written sigmoid matches too: autofuse/canonical/recognise/activations.py.
        return torch.sigmoid(F.linear(x, gate_weight, gate_bias)) * F.linear(x, up_weight, up_bias)

    @staticmethod
    def after(
        x: Tensor, gate_weight: Tensor, up_weight: Tensor, gate_bias: Tensor | None, up_bias: Tensor | None
    ) -> Tensor:  # fmt: skip
        return ops.gated_mlp(x, gate_weight, up_weight, gate_bias=gate_bias, up_bias=up_bias, activation="sigmoid")

    examples = (
        Fused(
            "the sigmoid of one projection gates the other",
            before="""
                import torch
                from torch import nn

                class Glu(nn.Module):
                    def __init__(self, dim: int, hidden: int):
                        super().__init__()
                        self.gate = nn.Linear(dim, hidden)
                        self.value = nn.Linear(dim, hidden)

                    def forward(self, x):
                        return self.value(x) * torch.sigmoid(self.gate(x))
            """,
            after='activation="sigmoid"',
        ),
        Kept(
            "the gated tensor is not a projection",
            """
                import torch
                from torch import nn

                class Gate(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.gate = nn.Linear(dim, dim)

                    def forward(self, x):
                        return x * torch.sigmoid(self.gate(x))
            """,
        ),
    )


class GatedHalves(Rule):
    """A gated MLP with one projection, whose first half is the gate."""

    code = "AF303"
    benefit = 3

    @staticmethod
    def before(x: Tensor, activation: str) -> Tensor:
        # Any activation matches, also hand-written: autofuse/canonical/recognise/activations.py.
        gate, up = x.chunk(2, -1)
        return ops.activation(gate, activation) * up

    @staticmethod
    def after(x: Tensor, activation: str) -> Tensor:
        return ops.gated_activation(x, activation=activation, gate_first=True)

    examples = (
        Fused(
            "one projection is chunked, and the first half is the gate",
            before="""
                import torch.nn.functional as F
                from torch import nn

                class Mlp(nn.Module):
                    def __init__(self, dim: int, hidden: int):
                        super().__init__()
                        self.proj = nn.Linear(dim, 2 * hidden)

                    def forward(self, x):
                        gate, up = self.proj(x).chunk(2, dim=-1)
                        return F.gelu(gate) * up
            """,
        ),
        Kept(
            "there are three chunks, and one is not used",
            """
                import torch.nn.functional as F

                def gate(x):
                    gate, up, rest = x.chunk(3, dim=-1)
                    return F.gelu(gate) * up
            """,
        ),
    )


class GatedHalvesGateLast(Rule):
    """A gated MLP with one projection, whose second half is the gate."""

    code = "AF303"
    benefit = 3

    @staticmethod
    def before(x: Tensor, activation: str) -> Tensor:
        # Any activation matches, also hand-written: autofuse/canonical/recognise/activations.py.
        up, gate = x.chunk(2, -1)
        return ops.activation(gate, activation) * up

    @staticmethod
    def after(x: Tensor, activation: str) -> Tensor:
        return ops.gated_activation(x, activation=activation, gate_first=False)

    examples = (
        Fused(
            "one projection is chunked, and the second half is the gate",
            before="""
                import torch.nn.functional as F
                from torch import nn

                class Mlp(nn.Module):
                    def __init__(self, dim: int, hidden: int):
                        super().__init__()
                        self.proj = nn.Linear(dim, 2 * hidden)

                    def forward(self, x):
                        x, gate = self.proj(x).chunk(2, dim=-1)
                        return x * F.relu(gate)
            """,
        ),
    )


class GatedLinearUnit(Rule):
    """A gated linear unit: one half times the sigmoid of the other."""

    code = "AF307"
    benefit = 3

    @staticmethod
    def before(x: Tensor) -> Tensor:
        # Halves that are sliced match too: autofuse/canonical/recognise/activations.py.
        value, gate = x.chunk(2, -1)
        return value * torch.sigmoid(gate)

    @staticmethod
    def after(x: Tensor) -> Tensor:
        return ops.glu(x)

    examples = (
        Fused(
            "one projection is chunked, and the sigmoid of the second half is the gate",
            before="""
                import torch
                from torch import nn

                class Glu(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.proj = nn.Linear(dim, 2 * dim)

                    def forward(self, x):
                        value, gate = self.proj(x).chunk(2, dim=-1)
                        return value * torch.sigmoid(gate)
            """,
            after="F.glu(",
        ),
        Kept(
            "the first half is the gate, but F.glu takes the second half",
            """
                import torch

                def gate_first(x):
                    gate, value = x.chunk(2, dim=-1)
                    return value * torch.sigmoid(gate)
            """,
        ),
    )


class GatedProduct(Rule):
    """A gated MLP with other modules as projections: the activated gate times the other branch."""

    code = "AF303"
    benefit = 2

    @staticmethod
    def before(gate: Tensor, up: Tensor, activation: str) -> Tensor:
        # Any activation matches, also hand-written: autofuse/canonical/recognise/activations.py.
        return ops.activation(gate, activation) * up

    @staticmethod
    def after(gate: Tensor, up: Tensor, activation: str) -> Tensor:
        return ops.gated_product(gate, up, activation=activation)

    @staticmethod
    def where(captures: Captures) -> Verdict | None:
        if captures.literal("activation") not in ("gelu", "gelu_tanh", "quick_gelu", "silu"):
            return None
        if not captures.branches("gate", "up"):  # it is a scale, or it has another input: this is no gated MLP
            return None
        return Holds("unsafe", "assumes that both branches have the same shape")

    examples = (
        Fused(
            "the projections are modules of another library",
            before="""
                import torch.nn.functional as F
                from parallel import ColumnParallelLinear
                from torch import nn

                class Mlp(nn.Module):
                    def __init__(self, dim: int, hidden: int):
                        super().__init__()
                        self.gate = ColumnParallelLinear(dim, hidden)
                        self.up = ColumnParallelLinear(dim, hidden)

                    def forward(self, x):
                        return F.silu(self.gate(x)) * self.up(x)
            """,
            after="ops.gated_product(",
        ),
        Kept(
            "the factors come from different inputs",
            """
                import torch.nn.functional as F
                from parallel import ColumnParallelLinear
                from torch import nn

                class Mix(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.gate = ColumnParallelLinear(dim, dim)
                        self.up = ColumnParallelLinear(dim, dim)

                    def forward(self, x, y):
                        return F.silu(self.gate(x)) * self.up(y)
            """,
        ),
    )


class Mlp(Rule):
    """An MLP: linear, activation, optional dropout, linear."""

    code = "AF304"
    benefit = 5

    @staticmethod
    def before(
        x: Tensor, activation: str, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor,
        down_bias: Tensor | None, p: float = 0.0, training: bool = False,
    ) -> Tensor:  # fmt: skip
        # Any activation matches, also hand-written: autofuse/canonical/recognise/activations.py.
        hidden = ops.activation(F.linear(x, up_weight, up_bias), activation)
        return F.linear(F.dropout(hidden, p, training), down_weight, down_bias)

    @staticmethod
    def after(
        x: Tensor, activation: str, up_weight: Tensor, up_bias: Tensor | None, down_weight: Tensor,
        down_bias: Tensor | None, p: float, training: bool,
    ) -> Tensor:  # fmt: skip
        return ops.mlp(
            x, up_weight, up_bias, down_weight, down_bias, activation=activation, dropout_p=p, training=training
        )

    examples = (
        Fused(
            "two linear layers with GELU between them",
            before="""
                from torch import nn

                class Mlp(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.up = nn.Linear(dim, 4 * dim)
                        self.act = nn.GELU()
                        self.down = nn.Linear(4 * dim, dim)

                    def forward(self, x):
                        return self.down(self.act(self.up(x)))
            """,
        ),
        Kept(
            "the hidden layer is returned too",
            """
                import torch.nn.functional as F
                from torch import nn

                class Mlp(nn.Module):
                    def __init__(self, dim: int):
                        super().__init__()
                        self.up = nn.Linear(dim, dim)
                        self.down = nn.Linear(dim, dim)

                    def forward(self, x):
                        hidden = F.gelu(self.up(x))
                        return self.down(hidden), hidden
            """,
        ),
    )
