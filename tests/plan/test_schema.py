"""The published JSON Schema: plans satisfy it, it knows every key that is written, and it refuses what is wrong."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from example_plans import example_plan
from jsonschema import Draft202012Validator

from shardplan.plan.file import dumps
from shardplan.plan.schema import documents_text, page, records, schema_text

SCHEMA = json.loads((files("shardplan.plan") / "schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


def strict(schema):
    """The schema with every key that it does not name forbidden."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "properties" in made and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def document():
    return json.loads(dumps(example_plan()))


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


def test_a_plan_satisfies_it_and_has_no_key_that_it_does_not_describe():
    Draft202012Validator(strict(SCHEMA)).validate(document())


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "plans").glob("*.json")), ids=lambda path: path.stem
)
def test_so_do_the_plans_of_the_repository(path):
    Draft202012Validator(strict(SCHEMA)).validate(json.loads(path.read_text(encoding="utf-8")))


def test_it_asks_for_every_section():
    for section in document().keys() - {"digest"}:  # plans of older formats have none
        without = document()
        del without[section]
        assert not VALIDATOR.is_valid(without), section


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("summary", "outcome", "best"),
        ("summary", "memory_bytes", 1.5),
        ("mesh", "axes", []),
        ("model", "mode", "serving"),
    ],
)
def test_it_refuses_wrong_values(section, key, value):
    wrong = document()
    wrong[section][key] = value
    assert not VALIDATOR.is_valid(wrong)


def test_it_takes_keys_of_a_later_minor_version():
    later = document()
    later["format_version"] = "1.9"
    later["operators"][0]["colour"] = "blue"
    assert VALIDATOR.is_valid(later)
    assert not VALIDATOR.is_valid({**later, "format_version": "2.0"})


def test_the_published_schema_and_the_tables_of_the_docs_are_those_of_the_table_of_fields():
    made = "run `python -m shardplan.plan.schema`"
    assert (files("shardplan.plan") / "schema.json").read_text(encoding="utf-8") == schema_text(), made
    docs = (Path(__file__).parents[2] / "docs" / "plan-file.md").read_text(encoding="utf-8")
    assert docs == page(docs), made
    assert [name for name in records() if f"<!-- fields of {name} -->" not in docs] == []


def test_the_summary_of_the_json_documents_is_that_of_the_plan_but_for_what_an_infeasible_one_lacks():
    text = (files("shardplan.render") / "documents.schema.json").read_text(encoding="utf-8")
    assert text == documents_text(text), "run `python -m shardplan.plan.schema`"
    said = json.loads(text)["$defs"]["summary"]["properties"]
    assert said["outcome"]["enum"] == ["optimal", "feasible", "infeasible", "interrupted"]
    assert (said["gap"]["type"], said["memory_limit_bytes"]["type"]) == (["number", "null"], "integer")
