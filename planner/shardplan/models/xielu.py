"""xIELU, the activation of Apertus (Huang and Schlag 2024): with learned a and b, beta = 1/2,

    x > 0: a x^2 + x / 2        else: (b + 1/2) (exp(min(x, eps)) - 1 - x) + x / 2

where a and b are softplus of one number each.
"""

from __future__ import annotations

import numpy as np

from shardplan.models.graph import GraphWriter


def xielu(graph: GraphWriter, x: str, shape: tuple[int, ...], module: str) -> str:
    """[batch, seq, inner] -> the same. Weights are those of `module`.act_fn."""
    module = f"{module}.act_fn"

    def apply(op_type: str, *operands: str, size: tuple[int, ...] = shape) -> str:
        return graph.apply(op_type, operands, size, module)

    def number(value: float) -> str:
        return graph.constant(f"xielu.{value:g}", np.array(value, dtype=np.float32), graph.dtype)

    rising, falling = (apply("Softplus", graph.weight(f"{module}.{name}", (1,)), size=(1,)) for name in _WEIGHTS)
    falling = apply("Add", falling, number(0.5), size=(1,))
    above = apply("Mul", apply("Mul", x, x), rising)
    below = apply("Sub", apply("Exp", apply("Min", x, number(-1e-6))), number(1))
    below = apply("Mul", apply("Sub", below, x), falling)
    positive = graph.apply("Greater", [x, number(0)], shape, module, dtype="bool")
    return apply("Add", apply("Where", positive, above, below), apply("Mul", x, number(0.5)))


_WEIGHTS = ("alpha_p", "alpha_n")
