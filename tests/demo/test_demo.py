"""Tests of `autofuse demo` with a tiny model: the terminal, the page and the JSON file."""

import io
import json

import pytest
from rich.console import Console

from autofuse.cli.demo import DATA, PAGE, main

TINY = ["--steps", "2", "--length", "16", "--pairs", "2"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Runs the demo once for all tests. Returns its output and its folder."""
    folder = tmp_path_factory.mktemp("demo")
    console = Console(file=io.StringIO(), width=120)
    assert main([*TINY, "--output", str(folder)], console) == 0
    return console.file.getvalue(), folder


@pytest.fixture(scope="module")
def data(demo):
    return json.loads((demo[1] / DATA).read_text(encoding="utf-8"))


def test_attention_norm_and_gelu_of_every_layer_are_fused(data):
    fused = {(site["rule"], site["module"]) for site in data["report"]["sites"] if site["status"] == "fused"}
    for layer in range(4):
        assert ("AF101", f"h.{layer}.attn") in fused
        assert any(code == "AF301" and module.startswith(f"h.{layer}.mlp") for code, module in fused)
        assert any(code.startswith("AF2") and module.startswith(f"h.{layer}") for code, module in fused)


def test_the_loss_curves_agree(data):
    assert data["agreement"]["agrees"], data["agreement"]["sentence"]
    assert [len(curve) for curve in data["losses"].values()] == [2, 2, 2]


def test_the_step_is_measured_and_the_fused_kernel_runs(data):
    comparison = data["comparison"]
    assert comparison["verdict"] in ("confirmed", "no-change", "regressed", "inconclusive")
    assert comparison["pairs"] == 2
    before, after = (json.dumps(comparison[f"operators_{side}"]) for side in ("before", "after"))
    assert "scaled_dot_product" in after and "scaled_dot_product" not in before


def test_the_diff_equals_that_of_rewrite(data):
    for line in ("-        att = F.softmax(att, dim=-1)", "fused=True"):
        assert line in data["diff"]
    assert "+" in data["diff"] and "F.scaled_dot_product_attention(" in data["diff"]


def test_the_terminal_shows_every_part(demo, data):
    printed = demo[0]
    for part in ("AF101", "optimized", data["comparison"]["verdict"], "F.scaled_dot_product_attention(", PAGE):
        assert part in printed
    assert data["agreement"]["sentence"].split(":")[0] in " ".join(printed.split())


def test_it_ends_with_three_lines_on_losses_time_and_what_comes_next(demo, data):
    losses, step, following = demo[0].rstrip().splitlines()[-3:]
    fused = sum(site["status"] == "fused" for site in data["report"]["sites"])
    assert losses == f"{fused} places fused; 2 losses the same up to rounding."
    assert f"{data['comparison']['ratio']:.2f}x" in step and data["comparison"]["verdict"] in step and "MiB" in step
    assert "autofuse check" in following and "autofuse.optimize" in following


def test_the_page_shows_every_part_and_loads_nothing_from_the_network(demo, data):
    page = (demo[1] / PAGE).read_text(encoding="utf-8")
    for part in ("AF101", "<svg", data["comparison"]["verdict"], "F.scaled_dot_product_attention("):
        assert part in page
    assert page.count("<script") == 1 and 'src="http' not in page and "<link" not in page


@pytest.mark.night
def test_the_option_json_prints_only_json(tmp_path):
    console = Console(file=io.StringIO())
    assert main([*TINY, "--json", "--output", str(tmp_path)], console) == 0
    assert json.loads(console.file.getvalue()) == json.loads((tmp_path / DATA).read_text(encoding="utf-8"))


def test_a_folder_that_cannot_be_written_is_reported_before_the_training(tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    console = Console(file=io.StringIO())
    assert main(["--output", str(tmp_path / "taken")], console) == 2
    error = capsys.readouterr().err
    assert "taken" in error and "--output" in error and not console.file.getvalue()


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--pairs", "1"], ["--steps", "many"], ["--no-such-option"]])
def test_invalid_options_are_errors(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and "usage: autofuse demo" in capsys.readouterr().err


def test_sites_have_predicted_and_measured_savings(data):
    layers = {layer["fqn"]: layer for layer in data["profile"]["before"]["layers"]}
    attention = next(place for place in layers["h.0.attn"]["places"] if place["rule"] == "AF101")
    assert attention["status"] == "fused"
    assert None not in (attention["seconds"], attention["predicted_seconds"], attention["measured_seconds"])
    assert data["profile"]["after"]["ladder"]
