"""Slapo's auto-sharding, with its prices on our graph and our solver.

Source: awslabs/slapo pull request 96 (branch autoshard): an MLP x [8, 1024, 1024] -> 4096 -> 1024 whose costs drop the
leading dim, on p devices; the input and the result are whole everywhere. Every assignment of the two products is priced,
which Slapo's solver visits five of, and the optimum is proven.
"""

import pytest

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.constraints.resolve import resolve
from shardplan.graph.build import build_cost_graph
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.pricing import Pricing
from shardplan.graph.problem import node_order, to_problem
from shardplan.graph.recipes import alpa_products, restrict
from shardplan.graph.wishes import allowed, bearings
from shardplan.layout.placement import P, R
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.rules import model_rules
from shardplan.solve import solve

PICOSECONDS_PER_UNIT = 1e6
COLUMN, CONTRACT, ROW = "n", "k", "m"
"""The three ways to split a product, which Slapo writes RRxRS, RSxSR and SRxRR."""


def mlp(rows: int = 1024, hidden: int = 1024) -> Model:
    sizes = {
        "x": (rows, hidden), "w1": (hidden, 4 * hidden), "a": (rows, 4 * hidden), "g": (rows, 4 * hidden),
        "w2": (4 * hidden, hidden), "y": (rows, hidden),
    }  # fmt: skip
    roles = {"x": "input", "w1": "parameter", "w2": "parameter"}
    tensors = {name: Tensor(name, shape, "float", roles.get(name, "activation")) for name, shape in sizes.items()}
    operators = (
        Operator("fc1", "MatMul", ("x", "w1"), ("a",), version=21),
        Operator("gelu", "Gelu", ("a",), ("g",), version=21),
        Operator("fc2", "MatMul", ("g", "w2"), ("y",), version=21),
    )
    return Model(
        "mlp", operators, tensors, (Parameter("w1", "w1", "w1"), Parameter("w2", "w2", "w2")), ("x",), ("y",), {}, opset=21
    )  # fmt: skip


class Slapo:
    """The MLP under Slapo's model on `devices`; `pins` fix more of it."""

    def __init__(self, devices: int, *pins: str, model: Model | None = None, split_penalty: float = 0.0) -> None:
        model = model or mlp()
        cluster = make_cluster(load_profile("generic"), f"{devices}x1")
        constraints = [parse_pin(pin) for pin in ("x=replicate", "y=replicate", *pins)]
        wishes = resolve(constraints, model, cluster.mesh)
        pricing = Pricing.slapo(cluster.mesh, split_penalty=split_penalty)
        options = PlanOptions(mode="inference")
        self.built = build_cost_graph(model, model_rules(model), cluster, options, pricing=pricing, wishes=wishes)
        problem = to_problem(self.built, Memory(self.built), None)
        for rule in (alpa_products(self.built), allowed(bearings(self.built, wishes)), _whole_values(self.built)):
            problem = restrict(problem, self.built, rule)
        solution = solve(problem)
        assert solution.outcome == "optimal"
        self.cost = round(solution.cost / PICOSECONDS_PER_UNIT, 3)
        self.choice = dict(zip(node_order(self.built), solution.choices, strict=True))

    def splits(self) -> dict[str, str]:
        spaces = zip(self.built.model.operators, self.built.operators, strict=True)
        return {op.name: space.strategies.labels(self.choice["operator", op.name])[0] for op, space in spaces}


def _whole_values(built) -> dict:
    """Slapo keeps no partial values."""
    return {("kept", name): space.codes[:, 0] != space.code(P()) for name, space in built.kept.items()}


def test_the_optimum_splits_the_rows():
    """RR -> SR before fc1 is free, SR -> RR after fc2 gathers the result."""
    found = Slapo(8)
    assert found.cost == 131072
    assert found.splits() == {"fc1": ROW, "gelu": found.splits()["gelu"], "fc2": ROW}
    assert found.built.kept["x"].layout(found.choice["kept", "x"]).placements == (R, R)


@pytest.mark.parametrize(
    ("first", "second", "published"),
    [
        (COLUMN, COLUMN, 655360),
        (COLUMN, CONTRACT, 1048576),
        (COLUMN, ROW, 589824),
        (CONTRACT, COLUMN, 4325376),
        (CONTRACT, CONTRACT, 5242880),
        (CONTRACT, ROW, 4325376),
        (ROW, COLUMN, 655360),
        (ROW, CONTRACT, 1507328),
        (ROW, ROW, 131072),
    ],
)
def test_the_nine_assignments(first, second, published):
    """Five of them are the iterations that Slapo printed; the others follow from its tables."""
    assert Slapo(8, f"fc1={{machine: {first}}}", f"fc2={{machine: {second}}}").cost == published


@pytest.mark.parametrize(("devices", "published"), [(2, 524288), (4, 262144), (8, 131072), (16, 65536)])
def test_more_devices(devices, published):
    assert Slapo(devices).cost == published


@pytest.mark.parametrize(("sequence", "published"), [(512, 524289), (1024, 1048577)])
def test_the_final_version_counts_every_element_and_one_for_the_split(sequence, published):
    """Batch 8, hidden 1024 on 8 devices; rows of all sequences together, as only whole sequences' rows are split."""
    assert Slapo(8, model=mlp(rows=8 * sequence), split_penalty=1.0).cost == published
