"""Change every kind of field of plans, one at a time, and count how many changes `shardplan check` refuses.

    python benchmarks/forged_plans.py PLAN MODEL [PLAN MODEL ...] [--each N] [--most N]

Every change is judged twice: as an edit, and as a forgery whose digest was made anew. What is called fresh is listed; a
forgery of what does not follow from a plan's decisions (docs/reliability.md) is expected to be.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("planner", "tests/support")]

from plan_edits import Edit, edits  # noqa: E402

from shardplan.errors import ShardplanError  # noqa: E402
from shardplan.model.types import Model  # noqa: E402
from shardplan.plan.file import read_plan  # noqa: E402
from shardplan.plan.format.decode import read_document  # noqa: E402
from shardplan.plan.format.digest import content_digest, edited  # noqa: E402
from shardplan.plan.format.encode import dumps  # noqa: E402
from shardplan.plan.format.kinds import RecordError  # noqa: E402
from shardplan.plan.types import Plan  # noqa: E402
from shardplan.study.check import check_document  # noqa: E402
from shardplan.study.freshness import Given  # noqa: E402
from shardplan.study.instance import load_model_of  # noqa: E402


class Judge:
    """What `check` says of documents of plans for one model, which is read once for all sizes of its dims."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.known: dict[str, Model | ShardplanError] = {}

    def __call__(self, document: dict[str, Any]) -> str:
        try:
            plan = read_document(document)
            return check_document(document, plan, "plan", self._model_of(plan), Given()).status
        except (RecordError, ShardplanError):
            return "unreadable"

    def _model_of(self, plan: Plan) -> Model:
        key = json.dumps(plan.model.get("dims"))
        if key not in self.known:
            try:
                self.known[key] = load_model_of(plan, "plan", self.model)
            except ShardplanError as problem:
                self.known[key] = problem
        found = self.known[key]
        if isinstance(found, ShardplanError):
            raise found
        return found


def seen(edit: Edit) -> bool:
    """Whether the digest tells the edit."""
    return "format_version" not in edit.document or bool(tuple(edited(edit.document)))


def judged(plan: str, model: str, each: int, most: int | None) -> None:
    """Print the counts of one plan."""
    start, document, judge = time.monotonic(), json.loads(dumps(read_plan(plan))), Judge(model)
    several = list(edits(document, each, most))
    forged = [edit for edit in several if edit.field != "digest"]
    statuses = [judge({**edit.document, "digest": content_digest(edit.document)}) for edit in forged]
    fresh = Counter(edit.field for edit, status in zip(forged, statuses, strict=True) if status == "fresh")
    refused = len(forged) - fresh.total()
    print(
        f"{plan}: edits {sum(map(seen, several))} of {len(several)} refused; forgeries {refused} of {len(forged)}",
        end="",
    )
    print(f" ({dict(Counter(statuses))}), {time.monotonic() - start:.0f} s")
    for field, count in fresh.most_common():
        print(f"  fresh ×{count}: {field}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="PLAN MODEL")
    parser.add_argument("--each", type=int, default=1, help="edits of every way of every kind of field")
    parser.add_argument("--most", type=int, default=None, help="edits of every kind of field")
    given = parser.parse_args()
    for plan, model in zip(given.files[::2], given.files[1::2], strict=True):
        judged(plan, model, given.each, given.most)


if __name__ == "__main__":
    main()
