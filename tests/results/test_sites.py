"""The report on a model's sites: data, and its three forms."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import fields, replace

import pytest

from autofuse.display import drawing, terminal
from autofuse.results.comparison import Comparison, Interval
from autofuse.results.sites import Fallback, Report, SiteReport
from autofuse.results.step_times import StepTime

FUSED = SiteReport("AF101", "h.0.attn", "fused", kernel="torch SDPA", max_error=1.5e-7, file="/code/model.py", line=42)
DECLINED = SiteReport("AF201", "h.0.norm", "declined", reason="x[0] is written in place at line 7.")
ROLLED_BACK = SiteReport("AF301", "", "rolled-back", reason="the gradient of `x` is off.", max_error=math.inf)
REPORT = Report((FUSED, DECLINED, ROLLED_BACK))


def test_the_table_names_rule_module_status_kernel_error_and_place() -> None:
    text = terminal.text(REPORT, width=120)
    for word in ("AF101", "h.0.attn", "fused", "torch SDPA", "1.5e-07", "model.py:42"):
        assert word in text


def test_a_reason_is_shown_as_it_is_written_even_with_brackets() -> None:
    assert "x[0] is written in place" in terminal.text(REPORT, width=120)


def test_a_long_reason_wraps_and_keeps_all_words() -> None:
    reason = " ".join(f"word{i}" for i in range(60))
    text = terminal.text(Report((SiteReport("AF101", "attn", "declined", reason),)), width=80)
    assert all(f"word{i}" in text for i in range(60))
    assert max(map(len, text.splitlines())) <= 80


def test_the_model_itself_has_a_name_in_the_table() -> None:
    assert "(model)" in str(REPORT)


def test_columns_that_would_be_empty_are_left_out() -> None:
    text = str(Report((DECLINED,)))
    assert "max error" not in text and "where" not in text


def test_str_has_no_escape_codes() -> None:
    assert "\x1b" not in str(REPORT)


def test_a_report_without_sites_says_so() -> None:
    assert "no sites found" in str(Report())
    assert "no sites found" in Report()._repr_html_()


def test_where_no_html_is_drawn_ipython_shows_the_table_and_not_the_fields() -> None:
    class Printer:
        shown = ""

        def text(self, text: str) -> None:
            self.shown += text

    printer, report = Printer(), Report((SiteReport("AF101", "attention", "fused"),))
    assert "_repr_pretty_" in vars(Report) and "_repr_pretty_" in vars(Comparison)  # IPython looks there, before bases
    report._repr_pretty_(printer, False)
    assert printer.shown == str(report) and "SiteReport(" not in printer.shown


def test_the_summary_counts_what_occurs() -> None:
    assert REPORT.summary == "1 fused, 1 declined, 1 rolled-back"
    assert Report((FUSED, FUSED)).summary == "2 fused"


def test_sites_can_be_selected_by_status() -> None:
    assert REPORT.with_status("declined") == (DECLINED,)


def test_an_empty_report_is_not_false() -> None:
    assert Report()
    assert len(Report()) == 0
    assert list(REPORT) == [FUSED, DECLINED, ROLLED_BACK]


def test_the_notebook_form_is_a_table_with_everything_escaped() -> None:
    html = Report((SiteReport("AF101", "<script>", "declined", reason="a < b & c"),))._repr_html_()
    assert "<table" in html
    assert "&lt;script&gt;" in html and "a &lt; b &amp; c" in html
    assert "<script>" not in html


def test_the_dict_has_a_version_and_every_field_of_every_site() -> None:
    data = REPORT.to_dict()
    assert data["version"] == 1
    assert [list(site) for site in data["sites"]] == [[field.name for field in fields(SiteReport)]] * 3
    assert Report(tuple(SiteReport(**site) for site in data["sites"])) == REPORT


def test_json_is_strict_and_an_infinite_error_is_null() -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    sites = json.loads(REPORT.to_json(), parse_constant=refuse)["sites"]
    assert [site["max_error"] for site in sites] == [1.5e-7, None, None]


def test_a_report_can_be_copied_pickled_and_hashed() -> None:
    assert copy.deepcopy(REPORT) == pickle.loads(pickle.dumps(REPORT)) == REPORT
    assert len({REPORT, Report(REPORT.sites)}) == 1


FALLEN = Report(
    (),
    (
        Fallback("blocks.0.attn", "mask is None", 12, "original"),
        Fallback("", "no hooks on self.ln", 1, "captured anew"),
    ),
)


def test_calls_that_fell_back_have_a_separate_table() -> None:
    printed = str(FALLEN)
    assert "guard that failed" in printed and "mask is None" in printed and "captured anew" in printed
    assert "(model)" in printed and "12" in printed
    assert "mask is None" in FALLEN._repr_html_()
    assert Report(()).fallback_table() is None and "guard" not in str(Report(()))


def test_calls_that_fell_back_are_in_json() -> None:
    found = json.loads(FALLEN.to_json())["fallbacks"]
    assert found[0] == {"module": "blocks.0.attn", "guard": "mask is None", "calls": 12, "ran": "original"}


def layers(count: int, **changed: object) -> tuple[SiteReport, ...]:
    """The places of so many equal layers."""
    found = [
        SiteReport("AF101", f"h.{i}.attn", "fused", kernel="torch SDPA", max_error=i * 1e-8, file="m.py", line=70)
        for i in range(count)
    ]
    found += [SiteReport("AF304", f"h.{i}.mlp", "fused", kernel="linear, linear", line=9) for i in range(count)]
    found += [SiteReport("AF301", f"h.{i}.mlp", "fused", reason="as part of AF304") for i in range(count)]
    return tuple(replace(s, **changed) if s.module == "h.1.attn" else s for s in found)  # type: ignore[arg-type]


def lines(report: Report, width: int = 120) -> list[str]:
    return [line.strip() for line in terminal.text(report, width=width).splitlines() if line.strip()][3:-1]


def test_equal_places_of_repeated_layers_are_one_line_with_the_largest_error() -> None:
    one, other = lines(Report(layers(12)))
    assert one.split() == "AF101 h.*.attn x12 fused torch SDPA 1.1e-07 m.py:70".split()
    assert other.startswith("AF304") and "h.*.mlp x12" in other


def test_a_place_that_is_fused_as_part_of_another_has_no_line() -> None:
    assert not any("AF301" in line for line in lines(Report(layers(3))))
    assert any("AF301" in line for line in lines(Report((SiteReport("AF301", "mlp", "fused", kernel="gelu"),))))


def test_the_number_of_fused_places_is_the_number_that_the_lines_show() -> None:
    report = Report(layers(3))
    assert report.summary == "6 fused (and 3 within them)" and len(report.with_status("fused")) == 9
    assert Report(layers(3)[:3]).summary == "3 fused"


@pytest.mark.parametrize("changed", [{"status": "declined"}, {"kernel": "flash"}, {"rule": "AF102"}])
def test_places_that_differ_in_more_than_the_layer_have_separate_lines(changed: dict[str, object]) -> None:
    found = lines(Report(layers(4, **changed)))
    assert len(found) == 3 and any("h.*.attn x3" in line for line in found)


def test_a_large_model_fits_in_80_columns_and_25_lines() -> None:
    why = "forward calls `print`, which has side effects (line 106)"
    text = terminal.text(Report((*layers(48), SiteReport("", "", "declined", why, advice="leave it out"))), width=80)
    assert len(text.splitlines()) <= 25 and max(map(len, text.splitlines())) <= 80
    assert "transformer" not in text and "h.*.attn x48" in text and ".details() lists every place" in text


def gpt2() -> Report:
    """Such a report as optimize makes for a GPT-2 of transformers: seven kinds of places, some with long reasons."""
    step = StepTime("training", 0.31, 0.21, 1.48, Interval(1.42, 1.53), "confirmed", 8, "wall")
    pairs = (("AF203", "h.{}"), ("AF102", "h.{}.attn"), ("AF101", "h.{}.attn"), ("AF304", "h.{}.mlp"))
    sites = [
        SiteReport(rule, name.format(i), "fused", "12.4 ms, the original 17.1 ms", "torch scaled_dot_product_attention",
                   1e-7, "modeling_gpt2.py", 50)
        for rule, name in pairs for i in range(12)
    ]  # fmt: skip
    why = "forward passes a DynamicCache to an operation (line 606)"
    advice = "pass tensors, numbers and flags to torch's operations, or leave the module out of the call of optimize"
    declined = [SiteReport("", f"transformer{'.wte' * i}", "declined", f"{why} {i}", advice=advice) for i in range(3)]
    return Report((*sites, *declined), steps=(step, replace(step, mode="inference")))


def test_long_reasons_are_shortened_if_a_report_would_have_more_than_25_lines() -> None:
    report = gpt2()
    text = terminal.text(drawing.renderable(report), width=80)
    assert len(text.splitlines()) <= 25 and max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "12.4 ms, the" in words and "..." in words and ".details() lists every place" in words
    whole = " ".join(terminal.text(drawing.renderable(report.details()), width=200).split())
    assert "or leave the module out of the call of optimize" in whole and "..." not in whole


def test_a_report_that_fits_shows_its_reasons_in_full() -> None:
    report = Report(gpt2().with_status("declined"))
    text = terminal.text(drawing.renderable(report), width=120)
    assert "..." not in text and "of the call of optimize" in " ".join(text.split())


def test_the_details_have_a_line_for_every_place() -> None:
    report = Report(layers(12))
    text = terminal.text(drawing.renderable(report.details()), width=120)
    assert all(f"h.{i}.attn" in text and f"h.{i}.mlp" in text for i in range(12)) and text.count("as part of") == 12
    assert report.details().to_dict() == report.to_dict() and "h.11.attn" in str(report.details())
