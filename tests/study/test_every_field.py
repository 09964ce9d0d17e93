"""A plan is a lock file: whatever single field of it is changed, `check` does not call it fresh."""

import json

import onnx
import pytest
from plan_edits import Edit, edits
from small_models import FOUR_GEMMS, MLP, proto_of

from shardplan.api import make_plan
from shardplan.errors import ShardplanError
from shardplan.model.read import read_model
from shardplan.model.types import Model
from shardplan.plan.format.decode import read_document
from shardplan.plan.format.digest import content_digest, edited
from shardplan.plan.format.document_diff import differences
from shardplan.plan.format.encode import dumps
from shardplan.plan.format.kinds import RecordError
from shardplan.study.check import check_document
from shardplan.study.freshness import Given

ASKED = {
    "one mesh": (MLP, {}),
    "stages": (FOUR_GEMMS.replace("BATCH", "4096"), {"stages": 2, "microbatches": 4, "mode": "inference"}),
}
GIVEN = ("digest", "sources", "cluster.profile.provenance", "memory_limit_bytes", "multipliers", "reproducible")
"""What nothing else in a plan says: what was asked, read and proven. These have their digest alone."""


@pytest.fixture(scope="module", params=ASKED)
def locked(request, tmp_path_factory) -> tuple[dict, Model]:
    """A plan's document, and its model."""
    file = tmp_path_factory.mktemp("locked") / "m.onnx"
    text, asked = ASKED[request.param]
    onnx.save(proto_of(text), file)
    plan = make_plan(file, "2x2", **asked, effort="quick")
    return json.loads(dumps(plan)), read_model(file)


def status(document: dict, model: Model) -> str:
    try:
        return check_document(document, read_document(document), "p", model, Given()).status
    except (RecordError, ShardplanError):
        return "unreadable"


def signed(edit: Edit) -> dict:
    """The edited document with the digest that it ought to have: a forgery."""
    return {**edit.document, "digest": content_digest(edit.document)}


def test_as_written_it_is_fresh(locked):
    assert status(*locked) == "fresh"


def test_every_edit_is_seen(locked):
    document, _ = locked
    known = [edit for edit in edits(document) if "format_version" in edit.document]
    unseen = [str(edit) for edit in known if not tuple(edited(edit.document))]
    assert len(known) > 500
    assert unseen == []


def test_every_forgery_of_what_follows_from_the_decisions_is_seen(locked):
    document, model = locked
    some = [edit for edit in edits(document, each=1, most=1) if not any(key in edit.field for key in GIVEN)]
    forged = [edit for edit in some if "pipeline" not in document or "profile" not in edit.field]
    fresh = [str(edit) for edit in forged if status(signed(edit), model) == "fresh"]
    assert len(forged) > 100
    assert fresh == []


def test_the_field_is_named(locked):
    document, _ = locked
    for edit in edits(document, each=1, most=2):
        found = [one.path for one in differences(edit.document, document)]
        assert found, edit
        assert len(found) == 1 or edit.way in ("emptied", "deleted", "filled", "exchanged", "row inserted") or (
            isinstance(edit.path[-1], int) or "row" in edit.way or "first" in edit.way
        ), (edit, found)  # fmt: skip


def test_nothing_differs_from_itself(locked):
    document, _ = locked
    assert list(differences(document, json.loads(json.dumps(document)))) == []
