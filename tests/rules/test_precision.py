"""Rules about the precision of a training loop: reported once with the line to write, if the file sets no precision."""

from __future__ import annotations

import pytest

from tests.source.rewriting import findings

PLAIN = """
    import torch
    {first}

    def main(model, loader):
        model.to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to("cuda")), y.to("cuda"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def codes(first: str = "") -> list[str]:
    return [f.code for f in findings(PLAIN.format(first=first))]


def test_full_precision_on_a_gpu_is_reported_once_with_the_line_to_write() -> None:
    tf32, autocast = findings(PLAIN.format(first=""))
    assert (tf32.code, tf32.status) == ("AF603", "report") and 'set_float32_matmul_precision("high")' in tf32.advice
    assert (autocast.code, autocast.status) == ("AF604", "report") and "with torch.autocast(" in autocast.advice
    assert tf32.line == 10


@pytest.mark.parametrize(
    "line",
    [
        "torch.set_float32_matmul_precision('high')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.fp32_precision = 'tf32'",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    ],
)
def test_a_file_that_mentions_tf32_gets_only_advice_on_autocast(line: str) -> None:
    assert codes(line) == ["AF604"]


@pytest.mark.parametrize(
    "line",
    [
        "from torch.cuda.amp import autocast",
        "from accelerate import Accelerator",
        "import lightning as L",
        "import deepspeed",
        "torch.set_default_dtype(torch.float64)",
        "torch.set_default_dtype(torch.bfloat16)",
        "parser.add_argument('--fp16')",
    ],
)
def test_a_file_that_mentions_another_precision_gets_no_advice(line: str) -> None:
    assert codes(line) == []


def test_a_script_for_the_cpu_gets_no_advice_on_tensor_cores() -> None:
    text = PLAIN.format(first="").replace('.to("cuda")', "")
    assert findings(text) == []


def test_a_scaler_for_bfloat16_is_reported() -> None:
    text = """
        import torch
        scaler = torch.amp.GradScaler({arguments})
        with torch.autocast("cuda", dtype=torch.{dtype}):
            pass
    """
    assert [f.code for f in findings(text.format(arguments="", dtype="bfloat16"))] == ["AF607"]
    assert findings(text.format(arguments="", dtype="float16")) == []
    assert findings(text.format(arguments="enabled=flag", dtype="bfloat16")) == []
