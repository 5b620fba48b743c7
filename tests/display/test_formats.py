"""Machine-readable findings: each format has every finding and follows its standard."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from autofuse.cli.arguments import NAMES
from autofuse.display import formats
from autofuse.display.formats import FORMATS, statistics_json, statistics_text
from autofuse.results.findings import Finding
from autofuse.results.fixes import LineChange, replacements, with_replacements

SAFE = Finding(
    "AF101", "HandWrittenAttention", "src/a.py", 5, 6, 9, "Block.forward", "safe", "becomes <sdpa> & more", ""
)
ODD = replace(
    SAFE, path="src/ä b\n.py", message="ends\x00 here\x1b[31m", reason="for a reason", advice="say it", line=7
)
CELL = replace(SAFE, path="a.ipynb", cell=3, status="report", code="AF602")
FOUND = [SAFE, ODD, CELL]
FIXES = {SAFE: (LineChange(5, 7, "    return 1\n"), LineChange(9, 9, "import torch\n"), LineChange(11, 12, ""))}

# The requirements of SARIF 2.1.0 for the written parts. The schema itself may not be distributed with this repository.
# A log with every part was validated against it by hand.
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
REGION = {
    "type": "object",
    "additionalProperties": False,
    "required": ["startLine", "endLine"],
    "properties": {k: {"type": "integer", "minimum": 1} for k in ("startLine", "startColumn", "endLine", "endColumn")},
}
ARTIFACT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["uri"],
    "properties": {"uri": {"type": "string", "format": "uri-reference", "pattern": "^[!-~]+$"}},
}
RULE = {
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {"id": {"type": "string"}, "name": {"type": "string"}, "shortDescription": TEXT},
}
REPLACEMENT = {
    "type": "object",
    "required": ["deletedRegion"],
    "additionalProperties": False,
    "properties": {"deletedRegion": REGION, "insertedContent": TEXT},
}
CHANGE = {
    "type": "object",
    "required": ["artifactLocation", "replacements"],
    "additionalProperties": False,
    "properties": {
        "artifactLocation": ARTIFACT,
        "replacements": {"type": "array", "minItems": 1, "items": REPLACEMENT},
    },
}
FIX = {
    "type": "object",
    "required": ["artifactChanges"],
    "additionalProperties": False,
    "properties": {"description": TEXT, "artifactChanges": {"type": "array", "minItems": 1, "items": CHANGE}},
}
SARIF = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {"type": "array", "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["tool"],
            "properties": {
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "tool": {"type": "object", "required": ["driver"], "properties": {"driver": {
                    "type": "object",
                    "required": ["name"],
                    "additionalProperties": False,
                    "properties": {
                        "name": {"type": "string"}, "version": {"type": "string"},
                        "rules": {"type": "array", "uniqueItems": True, "items": RULE},
                    },
                }}},
                "results": {"type": "array", "items": {
                    "type": "object",
                    "required": ["message"],
                    "additionalProperties": False,
                    "properties": {
                        "ruleId": {"type": "string"}, "ruleIndex": {"type": "integer", "minimum": 0},
                        "level": {"enum": ["none", "note", "warning", "error"]}, "message": TEXT,
                        "properties": {"type": "object"},
                        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
                        "locations": {"type": "array", "items": {
                            "type": "object", "additionalProperties": False,
                            "properties": {
                                "physicalLocation": {"type": "object", "additionalProperties": False,
                                    "properties": {"artifactLocation": ARTIFACT, "region": REGION}},
                                "logicalLocations": {"type": "array"},
                            },
                        }},
                        "fixes": {"type": "array", "items": FIX},
                    },
                }},
            },
        }},
    },
}  # fmt: skip


def test_the_command_line_offers_every_format() -> None:
    assert sorted(NAMES) == sorted(formats.NAMES)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_every_finding_and_no_terminal_escapes(name: str) -> None:
    text = FORMATS[name](FOUND, FIXES)
    assert "\x1b" not in text and "\x00" not in text
    assert FORMATS[name]([], {}) is not None
    assert text.count("AF101") >= 2 and "AF602" in text
    if name in ("json", "gitlab", "rdjson", "sarif"):
        json.loads(text)


def test_sarif_has_the_parts_that_the_standard_requires() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for found in (FOUND, []):
        log = json.loads(FORMATS["sarif"](found, FIXES))
        jsonschema.Draft202012Validator(SARIF).validate(log)
        assert [r["ruleId"] for r in log["runs"][0]["results"]] == [f.code for f in found]
    log = json.loads(FORMATS["sarif"](FOUND, FIXES))
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in log["runs"][0]["results"])
    first, _, cell = log["runs"][0]["results"]
    made = first["fixes"][0]["artifactChanges"][0]["replacements"]
    assert [m["deletedRegion"]["startLine"] for m in made] == [5, 9, 11]
    assert "region" not in cell["locations"][0]["physicalLocation"]


def test_junit_is_xml_with_a_failure_for_each_finding() -> None:
    root = ElementTree.fromstring(FORMATS["junit"](FOUND, {}))
    assert root.tag == "testsuites" and root.attrib["failures"] == "3"
    assert len(root.findall("testsuite/testcase/failure")) == 3


def test_equal_looking_findings_have_different_fingerprints_for_gitlab() -> None:
    issues = json.loads(FORMATS["gitlab"]([SAFE, SAFE, ODD], {}))
    assert len({i["fingerprint"] for i in issues}) == 3
    assert {"description", "check_name", "fingerprint", "severity", "location"} <= issues[0].keys()


def test_statistics_count_by_rule_and_status() -> None:
    assert json.loads(statistics_json([SAFE, SAFE, CELL])) == [
        {"code": "AF101", "status": "safe", "count": 2},
        {"code": "AF602", "status": "report", "count": 1},
    ]
    assert statistics_text([SAFE, SAFE, CELL]).splitlines()[-1] == "3 findings in 2 files"
    assert statistics_text([]) == ""


TEXTS = ["", "a\n", "a\nb\nc\n", "a\nx\nc", "b\n\x0cc\r\nd\n", "a\nb\nc\nd\ne\n"]


@pytest.mark.parametrize("before", TEXTS)
@pytest.mark.parametrize("after", TEXTS)
def test_replacements_change_one_text_into_the_other(before: str, after: str) -> None:
    assert with_replacements(before, replacements(before, after)) == after
