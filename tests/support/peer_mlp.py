"""Two products with a Gelu between them, priced as other systems price it, solved by our solver."""

from __future__ import annotations

from collections.abc import Callable

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.constraints.resolve import resolve
from shardplan.graph.build import build_cost_graph
from shardplan.graph.memory import Memory
from shardplan.graph.options import PlanOptions
from shardplan.graph.pricing import Pricing
from shardplan.graph.problem import node_order, to_problem
from shardplan.graph.recipes import Allowed, alpa_products, restrict
from shardplan.graph.wishes import allowed, bearings
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import P
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.rules import model_rules
from shardplan.solve import solve

PICOSECONDS_PER_UNIT = 1e6


def mlp(rows: int = 1024, hidden: int = 1024) -> Model:
    """x [rows, hidden] -> 4 hidden -> hidden."""
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
    weights = (Parameter("w1", "w1", "w1"), Parameter("w2", "w2", "w2"))
    return Model("mlp", operators, tensors, weights, ("x",), ("y",), {}, opset=21)


class Solved:
    """The optimum on one axis of `devices` at other prices: `cost` in their unit. `pins` fix some of it; no value is
    kept partial; `split_all`: products may not be whole on every device."""

    def __init__(
        self,
        devices: int,
        pricing: Callable[[Mesh], Pricing],
        *pins: str,
        model: Model | None = None,
        split_all: bool = True,
    ) -> None:
        model = model or mlp()
        cluster = make_cluster(load_profile("generic"), f"{devices}x1")
        wishes = resolve([parse_pin(pin) for pin in pins], model, cluster.mesh)
        options, prices = PlanOptions(mode="inference"), pricing(cluster.mesh)
        self.built = build_cost_graph(model, model_rules(model), cluster, options, pricing=prices, wishes=wishes)
        problem = to_problem(self.built, Memory(self.built), None)
        rules: list[Allowed] = [allowed(bearings(self.built, wishes)), _whole_values(self.built)]
        for rule in [*rules, alpa_products(self.built)] if split_all else rules:
            problem = restrict(problem, self.built, rule)
        solution = solve(problem)
        assert solution.outcome == "optimal"
        assert solution.choices is not None
        self.cost = round(solution.cost / PICOSECONDS_PER_UNIT, 3)
        self.choice = dict(zip(node_order(self.built), solution.choices, strict=True))

    def splits(self) -> dict[str, str]:
        """What the axis does to every operator."""
        spaces = zip(self.built.model.operators, self.built.operators, strict=True)
        return {op.name: space.strategies.labels(self.choice["operator", op.name])[0] for op, space in spaces}


def _whole_values(built) -> Allowed:
    return {("kept", name): space.codes[:, 0] != space.code(P()) for name, space in built.kept.items()}
