"""The tables of layers and places: repeated layers are one row, and the long list has every layer."""

from __future__ import annotations

from dataclasses import replace

from autofuse.display import layer_tables as tables
from autofuse.display.folding import folded_places
from autofuse.results.profile_parts import Place
from autofuse.results.table import Table
from tests.display.samples import ATTENTION, gpt, large, place


def column(table: Table, name: str) -> list[str]:
    i = [found.name for found in table.columns].index(name)
    return [row[i].text for row in table.rows]


def headings(table: Table) -> list[str]:
    return [found.name for found in table.columns]


def test_repeated_layers_are_one_row_and_the_rest_is_counted() -> None:
    table = tables.layers_table(gpt(), 3)
    assert column(table, "layer") == ["h.*.attn ×4", "h.*.mlp.0 ×4", "h.*.mlp.2 ×4", "28 more"]
    assert column(table, "share")[0] == "39.4 %"
    assert column(table, "rule") == ["AF101 applies: 1.23x", "none", "none", ""]


def test_the_short_table_has_plain_numbers_and_the_rule_below_the_name() -> None:
    table = tables.short_layers_table(gpt(), 2)
    assert column(table, "layer")[0] == "h.*.attn ×4\n  AF101 applies: 1.23x"
    assert column(table, "fwd ms")[0] == "36.00"
    assert column(table, "layer")[-1] == "32 more layers"


def test_columns_without_known_values_are_omitted() -> None:
    unknown = tuple(replace(layer, roofline=None, peak_bytes=None, regime="unknown") for layer in gpt().layers)
    table = tables.layers_table(replace(gpt(), layers=unknown))
    assert not {"roofline", "at peak", "limit", "SM eff."} & set(headings(table))


def test_the_column_of_rules_says_none_only_if_rules_were_searched() -> None:
    bare = replace(gpt(), layers=tuple(replace(layer, places=()) for layer in gpt().layers))
    assert "rule" in headings(tables.layers_table(gpt()))
    assert "rule" not in headings(tables.layers_table(bare))
    assert "rule" not in headings(tables.every_layer_table(bare))
    assert "rule" in headings(tables.both_layers_table(bare, gpt()))


def test_the_long_list_has_every_layer_in_model_order_with_reasons() -> None:
    table = tables.every_layer_table(gpt())
    assert len(table.rows) == len(gpt().layers)
    assert column(table, "layer")[:2] == ["wte", "h.0"]
    assert {"(the model itself)", "(outside of modules)"} <= set(column(table, "layer"))
    assert "Its 0.4 FLOP/byte lie below the balance of 6.1." in column(table, "why this limit")
    assert "AF201 declined; the scores are returned too" in column(table, "rule")


def test_layers_of_two_sides_are_matched_by_name() -> None:
    table = tables.both_layers_table(gpt(), gpt(True), 2)
    assert [column(table, name)[0] for name in ("own before", "own after", "rule")] == [
        "100 ms",
        "28.4 ms",
        "AF101 fused",
    ]


def test_a_place_shows_its_time_its_saving_and_its_fused_operation() -> None:
    table = tables.places_table(gpt())
    first = {name: column(table, name)[0] for name in headings(table)}
    assert first == {
        "rule": "AF101", "layer": "h.*.attn ×4", "status": "applies", "takes": "80 ms", "would save": "48 ms",
        "step gains": "1.23x", "saved": "256 MiB, 400 MFLOP", "becomes, or reason": f"{ATTENTION}; gpt.py:31",
    }  # fmt: skip
    assert column(table, "becomes, or reason")[-1] == "the scores are returned too; gpt.py:31"


def test_the_profile_with_measured_places_is_shown_of_two() -> None:
    fused = replace(place("AF101", "fused"), measured_seconds=0.01)
    layers = tuple(replace(layer, places=(fused,) if layer.places else ()) for layer in gpt().layers)
    before, bare = replace(gpt(), layers=layers), replace(gpt(), layers=())
    assert tables.most_informative((before, gpt(True))) is before
    assert tables.most_informative((gpt(), bare)) == gpt()
    assert tables.most_informative((gpt(), gpt(True))) == gpt(True)
    assert column(tables.both_layers_table(before, gpt(True), 1), "rule") == ["AF101 fused"]


def test_measured_and_predicted_savings_are_next_to_each_other() -> None:
    measured = replace(place("AF101", "fused", 0.02, 0.012), measured_seconds=0.01)
    layers = tuple(replace(layer, places=(measured,) if layer.kind == "Attention" else ()) for layer in gpt().layers)
    table = tables.places_table(replace(gpt(), layers=layers))
    assert column(table, "would save") == ["48 ms (measured 40 ms)"]


def test_a_part_of_a_larger_place_says_so() -> None:
    (part,) = folded_places([("mlp", Place("AF301", "applies", predicted_gain=1.1, part_of="AF304 in mlp"))])
    assert tables.place_in_words(part) == "AF301 in AF304: 1.10x"


def test_a_rule_is_named_once_with_the_total_gain_of_its_places() -> None:
    found = [Place("AF304", "applies", reason, predicted_gain=1.1) for reason in ("", "little")]
    assert tables.rules_in_words(folded_places([("mlp", one) for one in found])) == ["AF304 applies: 1.22x"]


def test_additional_time_of_a_place_is_not_a_saving() -> None:
    more = replace(place("AF101", "applies"), saved_flops=-67_000_000)
    layers = tuple(replace(layer, places=(more,) if layer.fqn == "h.0.attn" else ()) for layer in gpt().layers)
    assert column(tables.places_table(replace(gpt(), layers=layers)), "saved") == ["64 MiB, 67 MFLOP more"]


def test_the_short_table_has_one_line_for_each_place_and_names_larger_places() -> None:
    part = Place("AF301", "applies", "", "autofuse.ops.gelu", part_of="AF304 in mlp")
    layers = tuple(replace(layer, places=(*layer.places, part) if layer.places else ()) for layer in gpt().layers)
    table = tables.short_places_table(replace(gpt(), layers=layers), 5)
    told = dict(zip(column(table, "rule"), column(table, "becomes, or reason"), strict=True))
    assert told["AF101 applies"] == "ops.attention" and told["AF201 declined"] == "the scores are returned too"
    assert "ops.gelu, in AF304 in mlp" in column(table, "becomes, or reason")
    assert table.caption == "and 3 more"


def test_more_places_than_are_shown_are_counted() -> None:
    assert tables.places_table(gpt(), 2).caption == "and 2 more"
    assert tables.places_table(gpt()).caption == ""


def test_a_deep_models_table_is_as_long_as_a_shallow_ones() -> None:
    assert len(tables.layers_table(large(48)).rows) == len(tables.layers_table(large(2)).rows)
