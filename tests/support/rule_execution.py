"""Prove an option of a rule by doing what it says: shard the operands, run every device, combine the results.

`prove` runs one option on a mesh of one axis and compares with the unsharded operator; `laws` makes tests of a table
of cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from rule_cases import Case

from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P, Placement, R
from shardplan.model.types import Operator
from shardplan.program.localise import localise
from shardplan.program.lower import dtypes_around
from shardplan.program.machine.interpreter import run_operator
from shardplan.program.reference.evaluate import evaluate, widen
from shardplan.program.types import Site
from shardplan.rules.types import Option

LESS = frozenset({"ArgMax", "ArgMin", "SoftmaxCrossEntropyLoss"})
"""Operators that move less inside than their rule prices: integers do not double, sums of targets are single numbers.
As do halos, of which devices at the ends get one only."""
TWICE = {"ReduceLogSumExp": 2}
"""Operators that communicate more often than their rule prices: of a sum of exponentials the maximum comes first."""


def pieces(placement: Placement, size: int) -> tuple[int, ...]:
    return placement.segments or (size,)


def shard(array: np.ndarray, placement: Placement, ways: int, rank: int) -> np.ndarray:
    """What device `rank` holds: its slice of every segment, everything, or an addend of a sum."""
    if placement.kind == "S":
        ends = np.cumsum(pieces(placement, array.shape[placement.dim]))[:-1]
        parts = np.split(array, ends, axis=placement.dim)
        return np.concatenate([np.split(part, ways, axis=placement.dim)[rank] for part in parts], axis=placement.dim)
    if placement.kind == "P":
        shares = np.random.default_rng(7).standard_normal((ways, *array.shape)).astype(array.dtype)
        shares[-1] += array - shares.sum(axis=0)
        return shares[rank]
    return array


def combine(parts: list[np.ndarray], placement: Placement, size: int) -> np.ndarray:
    """The whole tensor from what all devices hold; replicas must agree."""
    if placement.kind == "S":
        count = len(parts)
        ends = np.cumsum([piece // count for piece in pieces(placement, size)])[:-1]
        split = [np.split(part, ends, axis=placement.dim) for part in parts]
        return np.concatenate([piece for segment in zip(*split, strict=True) for piece in segment], axis=placement.dim)
    if placement.kind == "P":
        combining = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[placement.reduction]
        return combining.reduce(parts)
    for part in parts[1:]:
        np.testing.assert_allclose(part, parts[0], rtol=1e-4, atol=1e-5, err_msg="replicas differ")
    return parts[0]


def site_of(case: Case, option: Option, mesh: Mesh) -> Site:
    """The operator on a mesh of one axis, along which it is split by `option`."""
    model = case.model()
    operator = model.operators[0]
    return Site(
        operator,
        case.rule(),
        mesh,
        (option,),
        tuple(Layout.of(p).forward if name else None for name, p in zip(operator.inputs, option.operands, strict=True)),
        tuple(Layout.of(placement).forward for placement in option.results),
        tuple(None if array is None else array.shape for array in case.operands),
        tuple(array.shape for array in case.whole),
        {place: array for place, array in enumerate(case.operands) if array is not None and array.dtype.kind in "iu"},
        dtypes_around(operator, model),
    )


def prove(case: Case, option: Option, ways: int = 2, tolerance: float = 1e-4) -> None:
    """`AssertionError` unless the option, carried out by `ways` devices, gives the results of the whole operator, and
    they move inside of it what the rule prices."""
    assert option.size % ways == 0
    mesh = Mesh.of(x=ways)
    site = site_of(case, option, mesh)
    held = list(zip(case.operands, option.operands, strict=True))
    devices = [
        [None if array is None else shard(widen(array), placement, ways, rank) for array, placement in held]
        for rank in range(ways)
    ]

    def run(operator: Operator, attributes: Mapping, operands: list) -> list[np.ndarray]:
        """By the case's own definition, where it has one."""
        if case.oracle is None or operator.kind != case.kind:
            return evaluate(operator, attributes, operands)
        return [np.asarray(made) for made in case.run(operands, dict(attributes))]

    moved: Counter[str] = Counter()
    results = run_operator(site, localise(site), devices, moved, run)
    assert len(results) == ways
    forward = [collective for collective in option.inner if collective.phase == "forward"]
    for kind in {*moved, *(collective.kind for collective in forward)}:
        found, priced = moved[kind], sum(c.payload_bytes * c.count for c in forward if c.kind == kind)
        share = {"all_reduce": 2 * (ways - 1), "all_gather": ways - 1, "permute": ways}[kind]
        most = 2 * TWICE.get(case.kind, 1) * share * priced  # devices compute in double precision
        assert found <= most if kind == "permute" or case.kind in LESS else found == most
    for position, expected in enumerate(case.whole):
        placement = option.results[position]
        dim = placement.dim if placement.kind == "S" else 0
        size = expected.shape[dim] if expected.ndim else 1
        found = combine([made[position] for made in results], placement, size)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def smaller(case: Case, option: Option, ways: int) -> Case:
    """What the first of `ways` devices runs, as a case of its own."""
    local = localise(site_of(case, option, Mesh.of(x=ways)))
    held = zip(case.operands, option.operands, strict=True)
    operands = [None if array is None else shard(array, placement, ways, 0) for array, placement in held]
    for place, array in sorted(local.operands.items()):
        operands[place:] = [array, *operands[place + 1 :]]
    constants = tuple(sorted({*case.constants, *local.operands}))
    return replace(case, operands=tuple(operands), attributes=local.attributes, constants=constants)


def outline(option: Option, count: int) -> list[tuple[str, int]]:
    """Where an option puts shards of the first `count` operands and of the results, regardless of segments."""
    return [(placement.kind, placement.dim) for placement in (*option.operands[:count], *option.results)]


def prove_linear(case: Case, group: tuple[int, ...], ways: int = 2) -> None:
    """`AssertionError` unless sums of the operands in `group` pass through as sums of the results."""
    operands = tuple(P() if position in group else R for position in range(len(case.operands)))
    option = Option("", ways, operands, (P(),) * case.outputs)
    prove(case, option, ways, tolerance=2e-3)


def laws(cases: dict[str, tuple[Case, str]]):
    """Five tests of `{name: (case, the factors it must offer)}`: what is offered, in which placements, that several
    axes can split one after another, and that options and partial sums give the whole."""
    every = pytest.mark.parametrize("name", cases)

    @every
    def test_options(name):
        case, factors = cases[name]
        labels = [label if "|" in label else label.split(";")[0] for label in case.options()]
        assert sorted(labels) == sorted(factors.split())
        rule = case.rule()
        assert len(case.options()) == len(rule.options) + len(rule.latent), "labels tell options apart"

    @every
    def test_placements(name):
        """Without collectives inside, a result is a shard, a sum, or a copy whose gradients are summed (design 4.1)."""
        case = cases[name][0]
        floats = [array.dtype.kind == "f" for array in case.whole]
        for option in case.options().values():
            assert all((p.kind == "R") == (a is None) for a, p in zip(case.operands, option.operands, strict=True))
            for placement, is_float in zip(option.results, floats, strict=True):
                assert placement.kind != "R" or option.inner or not is_float

    @every
    def test_a_device_can_split_on(name):
        """A device of one axis runs a smaller operator of the same kind, so the next axis has the same options."""
        case = cases[name][0]
        options = case.options()
        for option in options.values():
            ways = next(ways for ways in (2, 3) if option.size % ways == 0)
            if option.inner or option.ordered:
                continue
            count = len(case.operands)
            left = [(other.size, outline(other, count)) for other in smaller(case, option, ways).options().values()]
            for other in options.values():
                size = other.size // ways if other.factor == option.factor else other.size
                assert size == 1 or (size, outline(other, count)) in left, (option.label, other.label)

    @every
    def test_every_option_gives_the_result_of_the_whole(name):
        for option in cases[name][0].options().values():
            possible = [ways for ways in (2, 3) if option.size % ways == 0]
            assert possible, f"no test of {option.label}, which is {option.size} long"
            for ways in possible:
                prove(cases[name][0], option, ways)

    @every
    def test_partial_sums_pass_through(name):
        for group in cases[name][0].rule().linear:
            prove_linear(cases[name][0], group)

    return (
        test_options,
        test_placements,
        test_a_device_can_split_on,
        test_every_option_gives_the_result_of_the_whole,
        test_partial_sums_pass_through,
    )
