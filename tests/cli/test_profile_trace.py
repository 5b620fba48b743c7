"""autofuse profile --trace, where torch is not installed."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from autofuse.cli import main
from autofuse.cli.export_kinds import EXPORT_KINDS
from autofuse.cli.profile_exports import file_names

WITHOUT_TORCH = (
    "import sys\n"
    "for name in ('torch', 'numpy', 'transformers'): sys.modules[name] = None\n"
    "from autofuse.cli import main\n"
    "sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """One step of 1 ms in which a matrix product takes half a millisecond."""
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 1000}
    mm = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 100, "dur": 500}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [step, mm]}))
    return path


def test_a_trace_is_read_without_torch(trace: Path):
    arguments = ["profile", "--output", str(trace.parent / "out"), "--tokens", "500", "--trace", str(trace)]
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "busy time" in done.stdout
    data = json.loads((trace.parent / "out" / "profile.json").read_text())
    assert (data["kind"], data["timing"]["seconds"], data["timing"]["tokens"]) == ("trace", [0.001], 500)
    assert next(level["value"] for level in data["ladder"] if level["name"] == "busy") == 0.5
    assert "<svg" in (trace.parent / "out" / "profile.html").read_text()


def test_a_folder_means_all_traces_in_it(trace: Path, capsys: pytest.CaptureFixture[str]):
    for rank in range(2):
        node = trace.parent / "traces" / f"node{rank}"
        node.mkdir(parents=True)
        (node / f"rank{rank}.json").write_text(trace.read_text())
    folder, out = str(trace.parent / "traces"), str(trace.parent / "traces")
    for _ in range(2):  # what is written there is no trace when it is read again
        assert main(["profile", "--format", "json", "--output", out, "--trace", folder]) == 0
        assert [rank["rank"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [0, 1]


def test_a_folder_without_traces_gives_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    assert main(["profile", "--output", str(tmp_path), "--trace", str(tmp_path / "empty")]) == 2
    assert "holds no trace" in capsys.readouterr().err


def test_a_rate_has_a_decimal_prefix(trace: Path, capsys: pytest.CaptureFixture[str]):
    run = ["profile", "--format", "json", "--output", str(trace.parent / "out"), "--trace", str(trace)]
    assert main([*run, "--peak-flops", "989T", "--peak-bandwidth", "3.35e12"]) == 0
    with pytest.raises(SystemExit):
        main([*run, "--peak-flops", "fast"])
    assert "is not a rate" in capsys.readouterr().err


def test_stdout_contains_json_and_nothing_else(trace: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["profile", "--format", "json", "--output", str(trace.parent), "--trace", str(trace)]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["type"] == "profile"
    assert shown.err == ""


def test_bad_input_exits_2_with_a_message(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    broken, out = tmp_path / "broken.json", ["profile", "--output", str(tmp_path / "out")]
    broken.write_text("{")
    (tmp_path / "file").write_text("")
    for arguments, said in (
        ([*out, "--trace", str(tmp_path / "none.json")], "none.json cannot be read"),
        ([*out, "--trace", str(broken)], "broken.json has no"),
        ([*out, "--ncu", str(tmp_path / "none.csv"), "--trace", str(trace)], "none.csv cannot be read"),
        (["profile", "--output", str(tmp_path / "file"), "--trace", str(trace)], "cannot be written to"),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "profile.json").exists()


def test_every_export_is_written_next_to_the_profile(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    out, summary = trace.parent / "out", trace.parent / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    exports = [option for kind in EXPORT_KINDS for option in ("--export", kind)]
    run = ["profile", "--output", str(out), *exports, "--fail-if", "busy>0.4", "--trace", str(trace)]
    assert main(run) == 1
    assert all(str(out / name) in capsys.readouterr().out for name in file_names(EXPORT_KINDS)[:1])
    assert json.loads((out / "profile.speedscope.json").read_text())["profiles"]
    assert (out / "stacks.txt").read_text() == "trace.json;(outside);forward 500000\n"
    assert (out / "kernels.csv").read_text().splitlines()[1] == "aten::mm,matmul,1.0,0.0005,0.5"
    assert (out / "layers.csv").read_text().startswith("layer,class,calls,seconds")
    assert 'failures="1"' in (out / "junit.xml").read_text()
    assert "| fails |" in (out / "summary.md").read_text() == summary.read_text()
    again = json.loads(gzip.decompress((out / "trace.autofuse.json.gz").read_bytes()))
    assert [e["name"] for e in again["traceEvents"] if e.get("cat") == "autofuse"] == ["forward"]


def test_an_annotated_trace_of_several_ranks_is_refused(trace: Path, capsys: pytest.CaptureFixture[str]):
    run = ["profile", "--output", str(trace.parent / "out"), "--export", "perfetto", "--trace", str(trace), str(trace)]
    assert main(run) == 2
    assert "annotates one trace" in capsys.readouterr().err
