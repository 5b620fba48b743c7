"""The shipped schemas are those of the dataclasses, and written data conforms to them."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import pytest

from autofuse.results.profile import Profile
from autofuse.results.schema import schema
from tests.display.samples import almost_nothing, gpt, trace_of_a_job
from tools.schema import texts

SHIPPED = files("autofuse.results").joinpath("schemas")
SCHEMA = json.loads(SHIPPED.joinpath("profile.json").read_text())
KINDS = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip


def faults(value: Any, rule: dict[str, Any], where: str = "$") -> list[str]:
    """The violations of a schema by a JSON value, for the keywords that our schemas use."""
    if "$ref" in rule:
        return faults(value, SCHEMA["$defs"][rule["$ref"].rpartition("/")[2]], where)
    if "anyOf" in rule:
        found = [faults(value, option, where) for option in rule["anyOf"]]
        return [] if [] in found else found[0]
    if "const" in rule or "enum" in rule:
        return [] if value in rule.get("enum", [rule.get("const")]) else [f"{where}: {value!r}"]
    kinds = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    if not any(isinstance(value, KINDS[kind]) and (kind == "boolean" or value is not True) for kind in kinds):
        return [f"{where}: {value!r} is no {kinds}"]
    if isinstance(value, dict):
        missing = [f"{where}: lacks {name}" for name in rule.get("required", []) if name not in value]
        other = rule.get("additionalProperties")
        known = {name: rule.get("properties", {}).get(name, other) for name in value}
        return missing + [f for n, r in known.items() if r for f in faults(value[n], r, f"{where}.{n}")]
    if isinstance(value, list):
        rules = rule.get("prefixItems") or [rule["items"]] * len(value)
        short = [f"{where}: {len(value)} entries"] if len(rules) != len(value) else []
        return short + [
            f for i, (v, r) in enumerate(zip(value, rules, strict=False)) for f in faults(v, r, f"{where}[{i}]")
        ]
    return []


@pytest.mark.parametrize("name", sorted(texts()))
def test_the_shipped_schema_is_that_of_the_dataclass(name: str) -> None:
    assert SHIPPED.joinpath(name).read_text() == texts()[name], "run `python -m tools.schema`"


@pytest.mark.parametrize("profile", [gpt(), gpt(True), trace_of_a_job(), almost_nothing()], ids=lambda p: p.name)
def test_the_json_of_a_profile_conforms_to_the_schema(profile: Profile) -> None:
    assert faults(json.loads(profile.to_json()), SCHEMA) == []


@pytest.mark.skipif(not importlib.util.find_spec("jsonschema"), reason="jsonschema is not installed")
def test_the_jsonschema_package_agrees() -> None:
    jsonschema = importlib.import_module("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(gpt().to_json()), SCHEMA)


def test_data_that_does_not_conform_is_found() -> None:
    written = json.loads(gpt().to_json())
    del written["name"]
    written["timing"]["interval"] = [1.0]
    written["layers"][0]["regime"] = "fast"
    written["memory"]["peak_bytes"] = 1.5
    told = faults(written, SCHEMA)
    assert [fault.partition(":")[0] for fault in told] == [
        "$", "$.timing.interval", "$.layers[0].regime", "$.memory.peak_bytes",
    ]  # fmt: skip


def test_the_schema_has_every_field_and_object() -> None:
    assert {"version", "type", "name", "timing", "ladder", "layers"} <= set(
        SCHEMA["required"] + list(SCHEMA["properties"])
    )
    assert {"Layer", "Place", "Work", "Level", "Memory", "Timing"} <= set(SCHEMA["$defs"])
    assert SCHEMA["$defs"]["Work"]["properties"]["ideal_seconds"] == {"type": ["number", "null"]}
    assert SCHEMA["$defs"]["Place"]["properties"]["line"] == {"type": ["integer", "null"]}


def test_the_error_names_an_unsupported_type() -> None:
    @dataclass
    class Odd:
        what: complex

    with pytest.raises(TypeError, match="complex"):
        schema(Odd, {})
