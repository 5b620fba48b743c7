"""Code that `ruff format` or `black` formatted is still formatted after the edits."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import test_targets
from tests.source.rewriting import rewritten, source
from tests.source.targets import programs

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.py"))
CHAIN = source("""
    import torch
    import torch.nn.functional as F


    class Attention(torch.nn.Module):
        def __init__(self, heads, width):
            super().__init__()
            self.heads, self.scale, self.width = heads, 0.125, width
            self.qkv = torch.nn.Linear(width, 3 * width)
            self.attn_drop = torch.nn.Dropout(0.1)
            self.proj = torch.nn.Linear(width, width)

        def forward(self, hidden_states, relative_position_bias=None):
            batch, length, width = hidden_states.shape
            qkv = self.qkv(hidden_states).reshape(batch, length, 3, self.heads, width // self.heads)

            # (3, batch, heads, length, width of a head)
            query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)

            query = query * self.scale
            scores = query @ key.transpose(-2, -1)  # (batch, heads, length, length)

            if relative_position_bias is not None:
                # added to all of a batch
                scores = scores + relative_position_bias.unsqueeze(0)

            weights = scores.softmax(dim=-1)
            weights = self.attn_drop(weights)

            return self.proj((weights @ value).transpose(1, 2).reshape(batch, length, width))

        def pooled(self, query_states, key_states, value_states, mask):
            return (
                torch.softmax(query_states @ key_states.mT * self.scale + mask.unsqueeze(1), dim=-1) @ value_states
            ).mean(dim=-2)

        def rooted(self, query_states, key_states, mask=None):
            scores = torch.einsum("bhid,bhjd->bhij", query_states, key_states)
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e20)
            return torch.softmax(scores / (self.width ** (1 / 2)), dim=-1)

        def flat(self, query_states, key_states, value_states, channels, height):
            weights = (query_states @ key_states.mT * self.scale).softmax(dim=-1)
            hidden = (weights @ value_states).permute(0, 2, 1, 3).contiguous().view(-1, channels, height)
            return hidden
""")
TEXTS = {
    **{e.stem: e.read_text() for e in EXAMPLES},
    "chains": CHAIN,
    **{name: getattr(test_targets, name) for name in ("CAUSAL", "OPTIONAL", "FLAT", "MLP")},
    **{name: getattr(programs, name) for name in ("NORMS", "HALF_AFFINE", "LOSS", "IGNORING")},
}
RUFF = Path(sys.executable).with_name("ruff")
FORMATTERS = {
    "ruff": (str(RUFF), "format", "--isolated", "--line-length=88", "--stdin-filename=x.py", "-"),
    "black": (sys.executable, "-m", "black", "-q", "--line-length=88", "-"),
}
INSTALLED = {"ruff": RUFF.exists(), "black": importlib.util.find_spec("black") is not None}


def format_text(text: str, formatter: str) -> str:
    made = subprocess.run(FORMATTERS[formatter], input=text, capture_output=True, check=True, text=True, cwd="/")
    return made.stdout


@pytest.mark.parametrize("formatter", ["ruff", pytest.param("black", marks=pytest.mark.night)])
@pytest.mark.parametrize("name", TEXTS)
def test_formatted_code_is_still_formatted_after_the_edits(name: str, formatter: str) -> None:
    if not INSTALLED[formatter]:
        pytest.skip(f"{formatter} is not installed")
    after = rewritten(format_text(TEXTS[name], formatter))
    assert format_text(after, formatter) == after
