"""Ctrl-C for studies that compare plans: an incomplete search gives no answer instead of a wrong one."""

from __future__ import annotations

from shardplan.plan.types import Plan


def unless_interrupted(plan: Plan) -> Plan:
    """`plan`, unless Ctrl-C stopped its search: studies that compare plans then have no answer.

    Raises `KeyboardInterrupt`.
    """
    if plan.summary.outcome == "interrupted":
        raise KeyboardInterrupt
    return plan
