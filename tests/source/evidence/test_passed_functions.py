"""A function that is passed to code that reads it, or that uses it as an operation of torch, is not edited."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.source.rewriting import findings, module_of, rewritten, source

HEAD = """
import functools
import torch
from torch import nn
import torch.nn.functional as F
"""
SILU = "def silu(x: torch.Tensor) -> torch.Tensor:\n    x = x / 1; return x * torch.sigmoid(x)\n"

TAKEN = {
    "a decomposition": (
        'from torch._decomp import register_decomposition\n'
        '\n'
        '@register_decomposition(torch.ops.aten.silu)\n'
        '{f}'
    ),
    "a decomposition by call": (
        'from torch._decomp import register_decomposition\n'
        '\n'
        '{f}\n'
        'register_decomposition(torch.ops.aten.silu)(silu)\n'
    ),
    "a lowering": (
        'from torch._inductor.lowering import register_lowering\n'
        '\n'
        '@register_lowering(torch.ops.aten.silu)\n'
        '{f}'
    ),
    "an implementation": "@torch.library.impl('aten::silu', 'cpu')\n{f}",
    "an implementation of a library": (
        "lib = torch.library.Library('mine', 'DEF')\n"
        '\n'
        "@torch.library.impl(lib, 'silu', 'CPU')\n"
        '{f}'
    ),
    "an implementation by call": "lib = torch.library.Library('aten', 'IMPL')\n{f}\nlib.impl('silu', silu, 'CPU')\n",
    "a custom op": "@torch.library.custom_op('mine::silu', mutates_args=())\n{f}",
    "a fake of one": "@torch.library.register_fake('mine::silu')\n{f}",
    "py_impl": "@torch.ops.aten.silu.default.py_impl(torch._C.DispatchKey.CPU)\n{f}",
    "a handler of __torch_function__": (
        'HANDLED = {{}}\n'
        '\n'
        'def handles(op):\n'
        '    def keep(f):\n'
        '        HANDLED[op] = f\n'
        '        return f\n'
        '    return keep\n'
        '\n'
        '@handles(torch.nn.functional.silu)\n'
        '{f}'
    ),
    "a table of handlers": "{f}\nHANDLED = {{torch.nn.functional.silu: silu}}\n",
    "an entry of a table of handlers": "{f}\nHANDLED = {{}}\nHANDLED[F.silu] = silu\n",
    "a pattern": (
        'from torch._inductor.pattern_matcher import register_replacement\n'
        '\n'
        '{f}\n'
        'register_replacement(silu, None, [], None, [])\n'
    ),
    "a pattern of fx": "{f}\ndef change(gm):\n    torch.fx.replace_pattern(gm, silu, silu)\n",
    "a symbolic of onnx": (
        'from torch.onnx import register_custom_op_symbolic\n'
        '\n'
        '{f}\n'
        "register_custom_op_symbolic('aten::silu', silu, 9)\n"
    ),
    "a kernel of numba": "import numba\n\n@numba.njit\n{f}",
    "a kernel of triton": "import triton\n\n@triton.jit\n{f}",
    "a text that is read": "import inspect\n\n{f}\nTEXT = inspect.getsource(silu)\n",
    "torch's own": "{f}\ntorch.nn.functional.silu = silu\n",
    "torch's own, by its name": "{f}\nsetattr(F, 'silu', silu)\n",
    "torch's own, by a mock": (
        'from unittest import mock\n'
        '\n'
        '{f}\n'
        "mock.patch('torch.nn.functional.silu', silu).start()\n"
    ),
}  # fmt: skip
CALLED = {
    "no_grad": "@torch.no_grad()\n{f}",
    "inference_mode": "@torch.inference_mode\n{f}",
    "compile": "@torch.compile(dynamic=True)\n{f}",
    "cache": "@functools.lru_cache(maxsize=None)\n{f}",
    "a registry of the file": (
        'KNOWN = {{}}\n'
        '\n'
        'def register(name):\n'
        '    def keep(f):\n'
        '        KNOWN[name] = f\n'
        '        return f\n'
        '    return keep\n'
        '\n'
        "@register('silu')\n"
        '{f}'
    ),
    "a table of activations": "{f}\nKNOWN = {{'silu': silu, 'relu': torch.relu}}\n",
    "a wrapper of the file": (
        'def logged(f):\n'
        '    @functools.wraps(f)\n'
        '    def inner(*a):\n'
        '        return f(*a)\n'
        '    return inner\n'
        '\n'
        '@logged\n'
        '{f}'
    ),
    "a comparison": "{f}\ndef check(x):\n    torch.testing.assert_close(silu(x), F.silu(x))\n",
    "another function of torch's is patched": "{f}\ntorch.nn.functional.layer_norm = silu\n",
    "partial": "{f}\nhalf = functools.partial(silu)\n",
}  # fmt: skip


@pytest.mark.parametrize("text", TAKEN.values(), ids=list(TAKEN))
def test_a_function_used_as_an_implementation_is_not_edited(text: str) -> None:
    silu_findings = [f for f in findings(HEAD + text.format(f=SILU)) if f.code == "AF302"]
    assert [f.status for f in silu_findings] == ["declined"], silu_findings
    assert silu_findings[0].reason_code in ("other-meaning", "other-code-runs") and silu_findings[0].value_line


@pytest.mark.parametrize("text", CALLED.values(), ids=list(CALLED))
def test_a_function_that_is_only_called_or_stored_is_rewritten(text: str) -> None:
    before = HEAD + text.format(f=SILU)
    assert [f.status for f in findings(before) if f.code == "AF302"] == ["safe"]
    after = rewritten(before, unsafe=False)
    assert "F.silu(x)" in after
    if "script" not in text and "compile" not in text and "layer_norm" not in text:
        x = torch.randn(4, dtype=torch.float64)
        torch.testing.assert_close(module_of(before).silu(x), module_of(after).silu(x))


def test_the_message_names_an_unknown_registration() -> None:
    (finding,) = findings(HEAD + "from somewhere import register\n\n@register('silu')\n" + SILU)
    assert finding.status == "unsafe" and "assumes that `register('silu')` does no more than call" in finding.message


def _module_in_file(text: str, file: Path) -> ModuleType:
    """Writes a text to a file and returns its module. The script compiler needs the file."""
    file.write_text(source(text))
    module = ModuleType(file.stem)
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("scripted", ["@torch.jit.script\n{f}", "{f}\nsilu = torch.jit.script(silu)\n"])
def test_an_activation_in_a_script_assumes_that_autocast_is_off(scripted: str, tmp_path: Path) -> None:
    before = HEAD + scripted.format(f=SILU.replace("x = x / 1; ", ""))
    (finding,) = [f for f in findings(before) if f.code == "AF302"]
    assert finding.status == "unsafe" and "does not run under autocast" in finding.message
    x = torch.randn(4)
    original, new = (_module_in_file(text, tmp_path / f"{i}.py") for i, text in enumerate((before, rewritten(before))))
    torch.testing.assert_close(original.silu(x), new.silu(x))
    with torch.autocast("cpu", torch.bfloat16):
        dtypes = [[module.silu(x.bfloat16()).dtype for _ in range(3)] for module in (original, new)]
    assert dtypes[0] != dtypes[1], "the assumption is not needed any more"


@pytest.mark.parametrize("scripted", ["@torch.jit.script\n{f}", "{f}\nfast = torch.jit.script(attend)\n"])
def test_a_scripted_function_gets_only_calls_that_scripts_support(scripted: str) -> None:
    text = HEAD + scripted.format(
        f="def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:\n"
        "    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v\n"
    )
    assert [f.status for f in findings(text)] == ["safe"]
    assert [f.status for f in findings(text, "autofuse")] == ["declined"]


@pytest.mark.parametrize("name", ["_sfdp_pattern_3", "silu_replacement", "silu_decomposition", "decomp_silu"])
def test_a_function_named_like_a_pattern_is_not_edited(name: str) -> None:
    (finding,) = [f for f in findings(HEAD + SILU.replace("silu", name)) if f.code == "AF302"]
    assert finding.status == "declined" and finding.reason_code == "other-meaning"


def test_a_decorator_that_may_be_a_script_compiler_is_found() -> None:
    text = HEAD + (
        "def same(f):\n    return f\n\n\n"
        "maybe = same\nif torch.cuda.is_available():\n    maybe = torch.jit.script\n\n\n"
        "@maybe\ndef attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:\n"
        "    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v\n"
    )
    assert [f.status for f in findings(text)] == ["safe"]
    assert [f.status for f in findings(text, "autofuse")] == ["declined"]


def test_a_scripted_module_gets_only_calls_that_scripts_support() -> None:
    text = HEAD + (
        "class Block(nn.Module):\n    def forward(self, q, k, v):\n        return (q @ k.mT / 2).softmax(-1) @ v\n\n\n"
        "fast = torch.jit.script(Block())\n"
    )
    assert [f.status for f in findings(text)] == ["safe"]
    assert [f.status for f in findings(text, "autofuse")] == ["declined"]


def test_a_replacement_for_silu_does_not_call_silu() -> None:
    text = HEAD + TAKEN["torch's own"].format(f=SILU)
    original = torch.nn.functional.silu
    try:
        x = torch.randn(4, dtype=torch.float64)
        torch.testing.assert_close(module_of(rewritten(text)).silu(x), original(x))
    finally:
        torch.nn.functional.silu = original
        sys.modules.pop("rewritten", None)
