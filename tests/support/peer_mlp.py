"""Two products with a Gelu between them, priced as other systems price it, solved by our solver."""

from __future__ import annotations

from dataclasses import replace

from step_problems import serial

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.constraints.parse import parse_pin
from shardplan.cost.named import parse_cost_model
from shardplan.graph.options import PlanOptions
from shardplan.graph.problem import as_serial, node_order, to_problem
from shardplan.model.types import Model, Operator, Parameter, Tensor
from shardplan.planning import Planner
from shardplan.planning.constraint_masks import allowed, masks_of
from shardplan.planning.reduction import restrict
from shardplan.solve import solve
from shardplan.solve.problem import Usage

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
    """The optimum on one axis of `devices` at the prices of `cost_model`: `cost` in their unit; `outcome`. `pins` fix
    some of it. `weight_bytes`: what the weights may take on a device, nothing else being counted."""

    def __init__(
        self,
        devices: int,
        cost_model: str,
        *pins: str,
        model: Model | None = None,
        weight_bytes: int | None = None,
    ) -> None:
        peer = parse_cost_model(cost_model)
        cluster = make_cluster(load_profile("generic"), f"{devices}x1")
        options = PlanOptions(mode="inference", cost_model=peer, constraints=tuple(map(parse_pin, pins)))
        planner = Planner(model or mlp(), cluster, options)
        built, memory = planner.built_at()
        self.built = as_serial(built)
        problem = to_problem(self.built, memory, weight_bytes, serial(self.built))
        order = node_order(self.built)
        weights = [h for h in memory.holdings if h.category == "parameters"]
        problem = replace(problem, usages=tuple(Usage(order.index(h.node), h.start, h.end, h.amount) for h in weights))
        problem = restrict(problem, self.built, allowed(masks_of(self.built, planner.instance.constraints)))
        solution = solve(peer.restricted(problem, self.built), gap=0.0)
        self.outcome, self.shortfall_bytes = solution.outcome, solution.shortfall_bytes
        self.cost = round(solution.cost / PICOSECONDS_PER_UNIT, 3) if solution.choices else None
        self.choice = dict(zip(order, solution.choices or (), strict=bool(solution.choices)))

    def splits(self) -> dict[str, str]:
        """What the axis does to every operator."""
        spaces = zip(self.built.model.operators, self.built.operators, strict=True)
        return {op.name: space.strategies.labels(self.choice["operator", op.name])[0] for op, space in spaces}

    def kept(self, tensor: str) -> str:
        """The layout in which a tensor is kept, as one letter for the axis: `S(0)`, `R`."""
        return str(self.built.kept[tensor].layout(self.choice["kept", tensor]).placements[0])
