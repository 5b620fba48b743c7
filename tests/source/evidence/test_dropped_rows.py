"""An attention whose mask is added is safe if the text shows that no row loses every key to a large finite number.

Each program runs before and after its edit, with rows that its mask drops whole, and all gradients are compared.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from autofuse.loading.registry import load_rules
from autofuse.source.evidence.other_files import ProjectFiles
from autofuse.source.find.check import proposals
from tests.source.rewriting import findings, module_of, rewritten, source

LARGE = "drops no row as a whole with large finite numbers"
N = 6

# What is added to the scores; `pad` marks keys, and drops every key of the second sequence.
SAFE = (
    "self.bias",
    "self.emb(self.index).permute(2, 0, 1)",
    "self.mlp(self.index[..., None].to(x.dtype)).permute(2, 0, 1)",
    "self.small(x)",
    "self.triangle",
    "self.minus_infinity",
    "torch.triu(torch.full((N, N), -1e9), diagonal=1)",
    "torch.ones(N, N).triu(1) * -1e9",
    "(1 - torch.ones(N, N).tril()) * -1e9",
    "torch.triu(torch.full((N, N), -1e9), diagonal=1) + self.bias",
    "torch.triu(torch.full((N, N), -1e9), diagonal=1) + (1 - keep) * -10000.0",
    "(1.0 - keep) * -10000.0",
    "(keep == 0).to(x.dtype) * -10000.0",
    "(1.0 - keep[:, :]) * -1e4 + self.bias",
    "torch.zeros_like(keep).masked_fill(self.upper, float('-inf'))",
    "torch.where(self.upper, float('-inf'), 0.0) + self.bias",
    "(self.bias.abs() + 1e-9).log()",
    "torch.cat([self.bias[..., :1], self.bias[..., 1:]], -1)",
    "(x @ x.transpose(-2, -1))[:, None]",
    "2.0 * self.bias",
)
UNSAFE = (
    "keep",
    "(1.0 - keep) * -1e9",
    "(1.0 - keep) * torch.finfo(x.dtype).min",
    "(keep == 0).to(x.dtype) * -1e9",
    "torch.zeros_like(keep).masked_fill(keep == 0, -1e9)",
    "torch.where(keep == 0, torch.finfo(x.dtype).min, 0.0)",
    "torch.triu(torch.full((N, N), -1e9), diagonal=1) + (1 - keep) * -1e9",
    "torch.triu(torch.full((N, N), -1e9), diagonal=1) + torch.zeros_like(keep).masked_fill(keep == 0, -math.inf)",
    "-torch.triu(torch.full((N, N), -1e9), diagonal=1)",
    "torch.triu(torch.full((N, N), -1e9), diagonal=0)",
    "(1 - torch.ones(N, N).tril(-1)) * -1e9",
    "((1 - keep[..., :1]) * -1e9) @ torch.ones(1, N, dtype=x.dtype)",
    "self.bias * 1e5 * 1e5",
    "self.identity((1 - keep) * -1e9)",
    "self.large",
    "self.written",
    "self.large + self.bias",
    "self.padding(keep)",
    "self.filled(keep)",
    "self.filled_by(keep, -1e9)",
    "cfg.bias",
    "self.unknown",
    "self.bias * -1e9",
)


def program(added: str) -> str:
    return source(f"""
        import math
        import torch
        from torch import nn

        N = {N}

        class Attention(nn.Module):
            def __init__(self, unknown=None):
                super().__init__()
                self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
                self.bias = nn.Parameter(torch.linspace(-1, 1, N * N).view(1, N, N))
                self.emb = nn.Embedding(N, 1)
                self.mlp = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
                self.unknown = unknown
                self.register_buffer("index", (torch.arange(N)[:, None] - torch.arange(N)).abs())
                self.register_buffer("upper", torch.ones(N, N, dtype=torch.bool).triu(1))
                self.register_buffer("triangle", torch.triu(torch.full((N, N), -1e9), diagonal=1))
                self.register_buffer("minus_infinity", torch.full((N, N), -math.inf).triu(1))
                self.register_buffer("large", torch.full((N, N), -1e9))
                self.register_buffer("written", torch.zeros(N, N))
                self.written[2] = -1e9
                self.identity = nn.Identity()

            def small(self, x):
                table = torch.zeros(N, N)
                table = table + self.bias
                return table.expand(1, N, N)

            def padding(self, keep):
                return (1 - keep) * -1e9

            def filled(self, keep):
                table = torch.zeros_like(keep)
                table[keep == 0] = -1e9
                return table

            def filled_by(self, keep, fill):
                return torch.zeros_like(keep).masked_fill_(keep == 0, fill)

            def forward(self, x, keep, cfg=None):
                q, k, v = (f(x).view(x.size(0), N, 2, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
                s = q @ k.transpose(-2, -1) / 4
                s = s + {added}
                return s.softmax(-1) @ v
    """)


def gradients(text: str, dtype: torch.dtype, weights: Tensor) -> list[Tensor]:
    """Results and gradients for two sequences. In the second one, `keep` drops every key of the third query."""
    torch.manual_seed(0)
    model = module_of(text).Attention().to(dtype)
    keep = torch.ones(2, 1, N, N, dtype=dtype)
    keep[1, :, 2] = 0.0
    x = torch.randn(2, N, 8, dtype=dtype).requires_grad_()
    out = model(x, keep)
    (out * weights.to(dtype)).sum().backward()
    return [out, *(p.grad for p in (x, *model.parameters()) if p.grad is not None)]


def weights(of_dropped_row: float) -> Tensor:
    """The gradient of the result, with that of the dropped row multiplied."""
    given = torch.linspace(-1, 1, 2 * 2 * N * 4, dtype=torch.float64).view(2, 2, N, 4)
    given[1, :, 2] *= of_dropped_row
    return given


@pytest.mark.parametrize("added", SAFE)
def test_an_added_mask_that_keeps_a_key_of_each_row_is_safe(added: str) -> None:
    before = program(added)
    after = rewritten(before, unsafe=False)
    assert "scaled_dot_product_attention" in after, [f.message for f in findings(before)]
    results = [gradients(t, torch.float64, weights(1.0)) for t in (before, after)]
    for a, b in zip(*results, strict=True):  # next to 10,000, float64 numbers are 2e-12 apart
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("added", UNSAFE)
def test_an_added_mask_that_may_drop_a_row_names_this_assumption(added: str) -> None:
    found = [f for f in findings(program(added)) if f.code == "AF101"]
    assert [f.status for f in found] == ["unsafe"] and LARGE in found[0].message, found


def test_the_edit_is_right_under_its_assumption_and_wrong_without_it() -> None:
    before = program("(1.0 - keep) * -1e9")
    after = rewritten(before)
    assert "scaled_dot_product_attention" in after
    for of_dropped_row, same in ((0.0, True), (1.0, False)):
        results = [gradients(t, torch.float32, weights(of_dropped_row)) for t in (before, after)]
        close = [torch.allclose(a, b, atol=1e-5, rtol=1e-4) for a, b in zip(*results, strict=True)]
        assert close[0] and all(close) is same, of_dropped_row


def with_calls(calls: str) -> str:
    return source(f"""
        import math
        import torch
        from torch import nn

        class Attention(nn.Module):
            def forward(self, q, k, v, mask=None):
                b, h, n, d = q.shape
                s = q @ k.transpose(-2, -1) / math.sqrt(d)
                if mask is not None:
                    s = s + mask
                return s.softmax(-1) @ v

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = Attention()
                self.emb = nn.Embedding(9, 1)

            def forward(self, x, pad=None, *args, **kwargs):
                n = x.size(-2)
                causal = torch.full((n, n), float("-inf"))
                causal = torch.triu(causal, diagonal=1)
                {calls}
    """)


PASSED = {
    "return self.attention(x, x, x)": False,  # no call passes a mask
    "return self.attention(x, x, x, causal)": True,
    "return self.attention(x, x, x, mask=causal)": True,
    "return self.attention(x, x, x, mask=torch.hstack([torch.zeros(n, 2), causal]).type_as(x))": True,
    "return self.attention(x, x, x, mask=None) + self.attention(x, x, x, mask=causal[:n, :n])": True,
    "return self.attention(x, x, x, mask=pad)": False,
    "return self.attention(x, x, x, mask=causal) + self.attention(x, x, x, mask=pad)": False,
    "return self.attention(x, x, x, causal) + self.attention(x, *args)": False,
    "return self.attention(x, x, x, causal) + self.attention(x, x, x, **kwargs)": False,
    "causal[0] = -1e9\n                return self.attention(x, x, x, causal)": False,
    "causal.fill_(-1e9)\n                return self.attention(x, x, x, causal)": False,
    "causal += pad\n                return self.attention(x, x, x, causal)": False,
    "causal += 1.0\n                return self.attention(x, x, x, causal)": True,
    "for causal in pad: return self.attention(x, x, x, causal)": False,
    "causal, n = pad\n                return self.attention(x, x, x, causal)": False,
    "return self.attention(x, x, x, causal.masked_fill(pad, -1e9))": False,
}


LAYERS = {
    "nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1)": True,
    "nn.Linear(1, 4), nn.GELU(), nn.Dropout(0.1)": True,
    "nn.Linear(1, 4), Scaled()": False,
    "Scaled(), nn.ReLU()": False,
}


@pytest.mark.parametrize("layers", LAYERS)
def test_a_layer_of_unknown_size_after_a_learned_one_counts(layers: str) -> None:
    text = program(SAFE[2])
    text = text.replace("nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)", layers)
    text += "\n\nclass Scaled(nn.Module):\n    def forward(self, x):\n        return x * -1e9\n"
    (found,) = (f for f in findings(text) if f.code == "AF101")
    assert (LARGE not in found.message) is LAYERS[layers], found.message


@pytest.mark.parametrize("calls", PASSED)
def test_calls_in_the_file_show_what_an_argument_holds(calls: str) -> None:
    (found,) = (f for f in findings(with_calls(calls)) if f.code == "AF101")
    assert (LARGE not in found.message) is PASSED[calls], found.message


def test_a_call_in_another_file_may_pass_another_mask(tmp_path: Path) -> None:
    own, other = tmp_path / "own.py", tmp_path / "other.py"
    own.write_text(with_calls("return self.attention(x, x, x, causal)"))
    other.write_text(
        "import torch\nfrom own import Attention\n\n\ndef f(x, pad):\n    return Attention()(x, x, x, pad)\n"
    )
    for files, status in (((own,), "safe"), ((own, other), "unsafe")):
        project = ProjectFiles(tuple(map(str, files)))
        found = proposals(own.read_bytes(), str(own), rules=load_rules(), files=project)
        assert [p.finding.status for p in found if p.finding.code == "AF101"] == [status]


# Lines that write large numbers into a mask of zeros before it is added.
WRITES = (
    "m[keep == 0] = -1e9",
    "m[:, :, 2] = -1e9",
    "m[1] = float(-1e9)",
    "m.masked_fill_(keep == 0, -1e9)",
    "m.fill_(-1e9)",
    "m += (1 - keep) * -1e9",
    "m.copy_((1 - keep) * -1e9)",
    "m.data[1] = -1e9",
    "torch.add(m, keep, alpha=-1e9, out=m)",
    "m.add_(keep, alpha=-1e9)",
    "write(m, keep)",
    "[m][0].fill_(-1e9)",
    "m = m - 1e9 * keep",
    "m[0, 0].sub_(1e9)",
    "m.sub_(1e9 * keep)",
    "m.mul_(-1e9)\n            m.sub_(keep * 1e9)",
    "m.index_fill_(-2, keep.long(), -1e9)",
    "m.T[0] = -1e9",
    "torch.sub(m, keep * 1e9, out=m)",
    "keep.log_()\n            m = m + keep",
    "m = load(m)",
    "m = m if keep is None else keep",
    "for row in m: row.fill_(-1e9)",
)


@pytest.mark.parametrize("line", WRITES)
def test_a_mask_that_is_written_may_drop_a_row(line: str) -> None:
    text = source(f"""
        import torch

        def write(mask, keep):
            mask[keep == 0] = -1e9

        def attend(q, k, v, keep):
            b, h, n, d = q.shape
            m = torch.zeros_like(keep)
            {line}
            s = q @ k.transpose(-2, -1) / d ** 0.5 + m
            return s.softmax(-1) @ v
    """)
    found = [f for f in findings(text) if f.code == "AF101" and f.status == "safe"]
    assert found == []


def test_a_subclass_may_pass_another_mask() -> None:
    text = with_calls("return self.attention(x, x, x, causal)") + source("""
        class Sub(Attention):
            def forward(self, q, k, v, mask=None):
                return super().forward(q, k, v, (1 - mask) * -1e9)
    """)
    assert [f.status for f in findings(text) if f.code == "AF101"] == ["unsafe"]


def test_a_default_counts_as_a_passed_mask() -> None:
    text = with_calls("return self.attention(x, x, x, causal)").replace("mask=None", "mask=torch.full((9, 9), -1e9)")
    assert [f.status for f in findings(text) if f.code == "AF101"] == ["unsafe"]


# A dict of an attribute that keeps a bias: another use than as a cache may put anything into it.
KEPT = {
    "pass": True,
    "self.kept = {}": True,
    "if n and self.kept: self.kept = {}": True,
    "self.kept[1] = self.bias[:n]": True,
    "self.kept[1] = mask": False,
    "self.kept.update(a=mask)": False,
    "fill(self.kept)": False,
    "table = self.kept": False,
}


@pytest.mark.parametrize("line", KEPT)
def test_a_cache_of_a_bias_is_followed(line: str) -> None:
    text = source(f"""
        import torch
        from torch import nn

        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = nn.Parameter(torch.zeros(9, 9))
                self.kept = {{}}

            def biases(self, n):
                if n not in self.kept:
                    self.kept[n] = self.bias[:n, :n]
                return self.kept[n]

            def clear(self, n, mask):
                {line}

            def forward(self, q, k, v):
                b, h, n, d = q.shape
                s = q @ k.transpose(-2, -1) / 2 + self.biases(n)
                return s.softmax(-1) @ v
    """)
    (found,) = (f for f in findings(text) if f.code == "AF101")
    assert (LARGE not in found.message) is KEPT[line], found.message
