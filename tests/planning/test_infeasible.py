"""The words for plans that fall short, or are not there."""

from types import SimpleNamespace

import pytest

from shardplan.graph.options import PlanOptions
from shardplan.layout.mesh import Mesh
from shardplan.model.types import Model, Operator
from shardplan.plan.types import Memory
from shardplan.planning.infeasible import infeasible, lighter_options, out_of_time
from shardplan.planning.instance import without_rule
from shardplan.planning.memory_need import Holder, Need
from shardplan.rules.types import Rule

CLUSTER = SimpleNamespace(name="h100-dgx", mesh=Mesh.of(machine=4, gpu=4))


def model(*kinds: str) -> Model:
    operators = tuple(Operator(f"{kind.lower()}_{i}", kind, (), ()) for i, kind in enumerate(kinds))
    return Model("tiny", operators, {}, (), (), (), {})


def rules(*fallback: bool) -> list[Rule]:
    return [Rule("", (), fallback=value) for value in fallback]


def test_nothing_to_say():
    assert without_rule(model("Add", "Mul"), rules(False, False), strict=True) == []


def test_one_warning_names_them_all():
    (said,) = without_rule(model("Add", "Foo", "Bar", "Foo"), rules(False, True, True, True), strict=False)
    assert str(said) == (
        "warning[no-rule]: 3 operators have no sharding rule and will be replicated\n"
        "  Bar: 'bar_2'\n  Foo ×2: 'foo_1' ...\n"
        "hint: shardplan inspect says how much of the work they are"
    )


def test_strict_makes_it_an_error():
    (said,) = without_rule(model("Foo"), rules(True), strict=True)
    assert str(said) == (
        "error[no-rule]: 1 operator has no sharding rule, and --strict forbids to replicate them\n"
        "  Foo: 'foo_0'\nhint: plan without --strict, or add a rule"
    )


def test_many_kinds_are_cut_short():
    kinds = [f"Kind{i}" for i in range(20)]
    (said,) = without_rule(model(*kinds), rules(*[True] * 20), strict=False)
    assert said.detail.splitlines()[-1] == "and 12 more kinds"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (PlanOptions(), "more --microbatches, --remat auto, a lighter --optimizer, a larger --mesh or a smaller "),
        (PlanOptions(remat="auto"), "more --microbatches, a lighter --optimizer, a larger --mesh or a smaller "),
        (PlanOptions("inference"), "a larger --mesh or a smaller "),
    ],
)
def test_infeasible(options, hint):
    said = infeasible(model(), CLUSTER, 64 * 2**30, 6 * 2**30, lighter=lighter_options(options))
    assert str(said) == (
        "error[infeasible]: no plan fits in memory: every device is at least 6 GiB short\n"
        "  'tiny' on 'h100-dgx' (machine=4 x gpu=4) needs at least 70 GiB per device, of which 64 GiB may be used\n"
        f"hint: {hint}batch need less"
    )


def test_a_few_bytes_are_told_apart():
    said = infeasible(model(), CLUSTER, 30 * 2**20, 476, unasked=0)
    assert said.detail == (
        "'tiny' on 'h100-dgx' (machine=4 x gpu=4) needs at least 30.0005 MiB per device, of which 30 MiB may be used"
    )
    assert (
        str(infeasible(model(), CLUSTER, 2**30, 2**20))
        .splitlines()[1]
        .endswith("needs at least 1.001 GiB per device, of which 1 GiB may be used")
    )


def test_out_of_time():
    assert str(out_of_time(model(), CLUSTER)) == (
        "error[limit]: the search for 'tiny' on 'h100-dgx' (machine=4 x gpu=4) was ended before any plan was found\n"
        "hint: raise --time-limit"
    )


def test_infeasible_says_what_fills_the_memory():
    memory = Memory(parameters=20 * 2**30, gradients=0, optimizer=49 * 2**30, activations=2**30, temporaries=0)
    holders = (Holder("layers.*.up.weight", 32, 7 * 2**30, "S(0)@gpu"), Holder("embed.weight", 1, 2 * 2**30, "R"))
    said = infeasible(model(), CLUSTER, 64 * 2**30, 6 * 2**30, need=Need(memory, holders))
    assert said.detail.splitlines()[1:] == [
        "parameters 20 + optimizer 49 + activations 1 = 70 GiB, most of it in",
        "  7 GiB  layers.*.up.weight ×32, S(0)@gpu",
        "  2 GiB  embed.weight, whole on every device",
    ]
