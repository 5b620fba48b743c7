"""CSV files: every row, full numbers, empty cells for unknown values, and no cell that a spreadsheet would execute."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from autofuse.display.export_tables import kernels_csv, layers_csv
from autofuse.results.kernel_totals import KernelTotal
from tests.display.samples import gpt


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_layer_is_a_row_in_the_order_of_the_model() -> None:
    profile = gpt()
    found = rows(layers_csv(profile))
    assert [row["layer"] for row in found] == [layer.fqn for layer in profile.layers]
    attention = next(row for row in found if row["layer"] == "h.2.attn")
    assert float(attention["own_seconds"]) == profile.layer("h.2.attn").own_seconds
    assert attention["rules"] == "AF101 applies" and float(attention["predicted_saving_seconds"]) == pytest.approx(
        0.012
    )
    assert next(row for row in found if row["layer"] == "wte")["roofline"] == ""


def test_a_kernel_has_its_share_of_the_step() -> None:
    kernels = (KernelTotal("void gemm<1, 2>", "matmul", 24.5, 0.127), KernelTotal("add", "elementwise", 1, 0.0))
    found = rows(kernels_csv(replace(gpt(), kernels=kernels)))
    assert found[0]["kernel"] == "void gemm<1, 2>" and float(found[0]["count"]) == 24.5
    assert float(found[0]["share"]) == pytest.approx(0.127 / gpt().timing.median)


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_a_name_is_never_a_formula(name: str) -> None:
    (row,) = rows(kernels_csv(replace(gpt(), kernels=(KernelTotal(name, "other", 1, 0.1),))))
    assert row["kernel"] == f"'{name}"
