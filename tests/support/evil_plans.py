"""A plan whose names are what somebody would write who wants a page to obey them."""

from dataclasses import replace
from pathlib import Path

from shardplan.plan.file import read_plan
from shardplan.plan.types import Plan

EVIL = "</script><script>document.title='obeyed'</script><!--\u202e&<img src=x onerror=alert(1)>"
_PLAN = Path(__file__).parents[2] / "plans" / "gpt2_small.4x4.plan.json"


def evil_plan() -> Plan:
    """A plan that is `EVIL` wherever a file may say what it likes."""
    plan = read_plan(_PLAN)
    first, *others = plan.operators
    named, plain = plan.tensors[:5], plan.tensors[5:]
    return replace(
        plan,
        model={**plan.model, "name": EVIL},
        operators=(replace(first, name=EVIL, module=EVIL), *others),
        tensors=(*(replace(one, checkpoint=EVIL) if one.role == "parameter" else one for one in named), *plain),
        warnings=(EVIL,),
    )
