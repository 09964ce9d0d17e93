"""Whether a search came to its end, where half an answer would be a wrong one."""

from __future__ import annotations

from shardplan.plan.types import Plan


def finished(plan: Plan) -> Plan:
    """`plan`, unless the user stopped the search for it: questions that compare plans then have no answer.

    Raises `KeyboardInterrupt`.
    """
    if plan.summary.outcome == "interrupted":
        raise KeyboardInterrupt
    return plan
