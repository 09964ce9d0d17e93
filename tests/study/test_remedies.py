"""Remedies are solved, not guessed: each that is named leads to a plan that fits."""

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.planning import PlanOptions
from shardplan.study.remedies import Remedy, _cache, find_remedies, remedies_text


def product(rows: int = 64) -> Model:
    """x [rows, 64] times w [64, 64], twice."""
    sizes = {"x": (rows, 64), "w": (64, 64), "v": (64, 64), "h": (rows, 64), "y": (rows, 64)}
    roles = {"x": "input", "w": "parameter", "v": "parameter", "h": "activation", "y": "activation"}
    tensors = {name: Tensor(name, shape, "float", roles[name]) for name, shape in sizes.items()}
    operators = (Operator("one", "MatMul", ("x", "w"), ("h",)), Operator("two", "MatMul", ("h", "v"), ("y",)))
    parameters = (Parameter("w", "w", "w"), Parameter("v", "v", "v"))
    return Model("product", operators, tensors, parameters, ("x",), ("y",), {})


def remedies(limit: int, mesh: str = "2x2", **options) -> dict[str, Remedy]:
    asked = PlanOptions(memory_limit_bytes=limit, **options)
    found = find_remedies(product(), make_cluster(load_profile("h100-dgx"), mesh), asked)
    assert all(remedy.memory_bytes <= limit for remedy in found)
    return {remedy.change: remedy for remedy in found}


@pytest.mark.parametrize("limit", [30_000])
def test_more_devices_help_and_what_is_named_fits(limit):
    found = remedies(limit)
    assert any(change.startswith("--mesh ") for change in found)
    kinds = [change.split()[0] for change in found]
    assert len(kinds) == len(set(kinds))


def test_only_the_mesh_helps_inference():
    assert all(change.startswith("--mesh") for change in remedies(12_000, mode="inference"))


def test_where_nothing_helps_nothing_is_said():
    assert remedies(100) == {}


def test_text():
    text = remedies_text([Remedy("--microbatches 4", 1_090_000_000, 75 << 30), Remedy("--mesh 8x4", 5_000, 1 << 20)])
    assert text.splitlines() == [
        "these were solved, and fit:",
        "  - --microbatches 4  step 1.09 s, 75 GiB per device",
        "  - --mesh 8x4        step 5 us, 1 MiB per device",
    ]


def test_more_machines_where_one_has_no_more_devices():
    """A mesh of one whole machine grows to several, named so that any profile understands it."""
    found = [change for change in remedies(9_000, mesh="8", mode="inference") if change.startswith("--mesh")]
    assert found == ["--mesh net=4,gpu=8"]


def test_a_smaller_cache_is_tried():
    asked = PlanOptions("inference", kv_cache_tokens=1000)
    assert [change for change, _ in _cache(asked)][:2] == ["--kv-cache tokens=500", "--kv-cache tokens=250"]
    assert list(_cache(PlanOptions("inference"))) == []
