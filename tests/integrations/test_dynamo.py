"""The analysis backend changes no result, and lists every unfused site and every graph break with file and line."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autofuse
from autofuse.integrations.dynamo import analyze
from autofuse.results.analysis import Analysis, UnfusedSite
from tests.fx.conftest import Attention, Gpt, computed

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, 20, (2, 8))


def analyse(model: nn.Module, *inputs: Tensor, **options: object) -> Analysis:
    compiled = torch.compile(model, backend=analyze, options=options or None)
    compiled(*inputs)
    return autofuse.analysis(compiled)


def line_of(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(lines) if text in line)


def attention_of(found: Analysis) -> UnfusedSite:
    (site,) = (s for s in found if s.rule == "AF101")
    return site


def test_the_backend_changes_neither_results_nor_gradients(tokens: Tensor) -> None:
    model = Gpt()
    expected, gradients = computed(model, tokens)
    found, others = computed(torch.compile(model, backend=analyze), tokens)
    assert torch.equal(expected, found)
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True) if a is not None and b is not None)


def test_equal_layers_are_one_entry_with_a_count_and_all_names(tokens: Tensor) -> None:
    site = attention_of(analyse(Gpt(0.1), tokens))
    assert (site.status, site.count, site.modules) == ("unfused", 2, ("blocks.0.attn", "blocks.1.attn"))
    assert site.file == inspect.getfile(Attention)
    assert site.line == line_of(Attention.forward, "att @ v")
    assert site.operation == "autofuse.ops.attention"
    assert site.mask.startswith("causal")


def test_the_listed_sites_are_those_that_optimize_fuses(tokens: Tensor) -> None:
    listed = {(s.rule, s.file, s.line) for s in analyse(Gpt(0.1), tokens).with_status("unfused")}
    report = autofuse.report(autofuse.optimize(Gpt(0.1), tokens, verify=False))
    fused = {(s.rule, s.file, s.line) for s in report.with_status("fused")}
    assert fused and fused <= listed


def test_an_optimized_model_has_no_attention_left_to_list(tokens: Tensor) -> None:
    model = autofuse.optimize(Gpt(), tokens, verify=False)
    found = analyse(model, tokens)
    assert found.graphs == 1
    assert not {s.rule for s in found.with_status("unfused")} & {"AF101", "AF304"}


def test_symbolic_sizes_hide_no_site(tokens: Tensor) -> None:
    compiled = torch.compile(Gpt(), backend=analyze, dynamic=True)
    compiled(tokens)
    assert attention_of(autofuse.analysis(compiled)).count == 2


def test_a_second_model_that_reuses_a_graph_has_its_own_sites(tokens: Tensor) -> None:
    first, second = Gpt(), Gpt()
    analyse(first, tokens)
    assert attention_of(analyse(second, tokens)).count == 2
    assert attention_of(autofuse.analysis(first)).count == 2
    assert autofuse.analysis(Gpt()).graphs == 0


class Watched(Attention):
    """Returns its probabilities too."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = self.qkv(x).split(16, dim=2)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4.0, dim=-1)
        return self.proj(weights @ v), weights


def test_a_near_miss_has_a_reason() -> None:
    (site,) = (s for s in analyse(Watched(), torch.randn(2, 8, 16)) if s.rule == "AF101")
    assert site.status == "declined"
    assert "`weights` is returned" in site.reason and "graph break" not in site.reason
    assert site.advice and site.value == "weights"


class Broken(Attention):
    """Leaves the graph between scores and softmax."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).split(16, dim=2)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4.0, dim=-1)
        out: Tensor = self.proj(weights @ v)
        torch._dynamo.graph_break()
        return out + weights.sum()


class InALoop(nn.Module):
    """Breaks the graph where Dynamo cannot continue after the break."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            if x.sum().item() > 0:
                x = x * 2
        return x


def test_a_graph_break_and_the_site_that_it_splits_have_reasons_and_lines() -> None:
    found = analyse(Broken(), torch.randn(2, 8, 16))
    (told,) = found.breaks
    assert (told.file, told.line) == (__file__, line_of(Broken.forward, "graph_break()"))
    assert "graph_break" in told.reason and told.count == 1
    assert found.graphs == 2
    site = attention_of(found)
    assert site.status == "declined" and "is needed after a graph break" in site.reason
    assert (site.reason_code, site.advice) == ("value-behind-break", "remove the graph break first")


def test_a_function_that_runs_entirely_in_python_is_reported() -> None:
    found = analyse(InALoop(), torch.ones(3))
    (told,) = found.breaks
    assert (told.file, told.line) == (__file__, line_of(InALoop.forward, "item()"))
    assert "all of forward (test_dynamo.py" in told.reason


def test_one_graph_that_runs_for_two_layers_counts_for_both() -> None:
    model = nn.Sequential(Attention(), Attention())
    model.requires_grad_(False)
    for child in model:
        child.compile(backend=analyze)
    model(torch.randn(2, 8, 16))
    found = autofuse.analysis(model)
    assert found.graphs == 1
    assert attention_of(found).modules == ("0", "1")


class Checkpointed(Gpt):
    """Every block is computed again in the backward pass."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits: Tensor = self.head(x)
        return logits


def test_sites_in_checkpointed_code_are_listed(tokens: Tensor) -> None:
    assert attention_of(analyse(Checkpointed(), tokens)).modules == ("blocks.0.attn", "blocks.1.attn")


def test_another_backend_may_compile_the_graph() -> None:
    compiled = []

    def other(gm: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        compiled.append(gm)
        return gm.forward

    x = torch.randn(2, 8, 16)
    assert analyse(Attention(), x, then=other).graphs == len(compiled) == 1
    torch._dynamo.reset()
    assert analyse(Attention(), x, then="eager").graphs == 1


def test_rules_are_selected_by_options() -> None:
    x = torch.randn(2, 8, 16)
    assert {s.rule for s in analyse(Attention(), x, select="AF1")} == {"AF101"}
    torch._dynamo.reset()
    assert not analyse(Attention(), x, ignore=["AF1"]).sites


def test_the_error_for_an_unknown_option_lists_the_options() -> None:
    with pytest.raises(Exception, match=r"no option 'them'. Its options are then, select, ignore"):
        analyse(Attention(), torch.randn(2, 8, 16), them="inductor")


def test_a_reset_of_dynamo_clears_the_records() -> None:
    model = Attention()
    analyse(model, torch.randn(2, 8, 16))
    torch._dynamo.reset()
    assert autofuse.analysis(model) == autofuse.analysis() == Analysis()


def test_the_file_of_a_compiled_function_selects_its_sites() -> None:
    @torch.compile(backend=analyze)
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT, dim=-1) @ v

    attend(*torch.randn(3, 2, 4, 8))
    assert attention_of(autofuse.analysis(attend)).file == __file__


def test_torch_finds_the_backend_by_its_entry_point(tmp_path: Path) -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    (tmp_path / "autofuse-0.0.0.dist-info").mkdir()
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in declared.items()]
    (tmp_path / "autofuse-0.0.0.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "autofuse-0.0.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: autofuse\n")
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import torch\n"
        "model = torch.compile(lambda q: torch.softmax(q @ q.mT, -1) @ q, backend='autofuse')\n"
        "model(torch.ones(2, 4, 4))\n"
        "import autofuse; print(autofuse.analysis().to_json())"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sites"][0]["rule"] == "AF101"
