"""Prove an option of a rule by doing what it says: shard the operands, run every device, combine the results.

`prove` runs one option on a mesh of one axis and compares with the unsharded operator; `laws` makes tests of a table
of cases.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rule_cases import Case
from rule_devices import LOCAL, Device, nothing
from rule_inside import TOGETHER

from shardplan.layout.placement import P, Placement, R
from shardplan.rules.types import Option


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


def prove(case: Case, option: Option, ways: int = 2, tolerance: float = 1e-4) -> None:
    """`AssertionError` unless the option, carried out by `ways` devices, gives the results of the whole operator."""
    assert option.size % ways == 0
    whole = case.whole
    devices = []
    for rank in range(ways):
        held = zip(case.operands, option.operands, strict=True)
        operands = [None if array is None else shard(array, placement, ways, rank) for array, placement in held]
        devices.append(Device(case, option, ways, rank, operands, dict(case.attributes), whole))
    for device in devices:
        LOCAL.get(case.kind, nothing)(device)
    if option.inner or option.ordered or any(placement.kind == "R" for placement in option.results):
        results = TOGETHER[case.kind](devices)
    else:
        results = [device.run() for device in devices]
        if option.averaged:
            partial = [placement.kind == "P" for placement in option.results]
            results = [[part / ways if p else part for part, p in zip(made, partial, strict=True)] for made in results]
    assert len(results) == ways
    for position, expected in enumerate(whole):
        placement = option.results[position]
        dim = placement.dim if placement.kind == "S" else 0
        size = expected.shape[dim] if expected.ndim else 1
        found = combine([made[position] for made in results], placement, size)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def smaller(case: Case, option: Option, ways: int) -> Case:
    """What the first of `ways` devices runs, as a case of its own."""
    held = zip(case.operands, option.operands, strict=True)
    operands = [None if array is None else shard(array, placement, ways, 0) for array, placement in held]
    device = Device(case, option, ways, 0, operands, dict(case.attributes), case.whole)
    LOCAL.get(case.kind, nothing)(device)
    return replace(case, operands=tuple(device.operands), attributes=device.attributes)


def outline(option: Option) -> list[tuple[str, int]]:
    """Where an option puts shards, regardless of segments."""
    return [(placement.kind, placement.dim) for placement in (*option.operands, *option.results)]


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
            left = [(other.size, outline(other)) for other in smaller(case, option, ways).options().values()]
            for other in options.values():
                size = other.size // ways if other.factor == option.factor else other.size
                assert size == 1 or (size, outline(other)) in left, (option.label, other.label)

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
