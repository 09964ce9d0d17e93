"""Functions of batches of matrices: rows and columns are whole, batch dims may be split."""

from __future__ import annotations

from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op
from shardplan.torch.propagation.plan_graph import Key
from shardplan.torch.propagation.values import Call, Value
from shardplan.torch.rules.elementwise import as_value
from shardplan.torch.rules.fallback import replicated

DECOMPOSITIONS = frozenset(
    ("linalg_solve_triangular", "linalg_inv", "inverse", "linalg_cholesky", "cholesky", "linalg_matrix_exp",
     "matrix_exp", "linalg_det", "det")
)  # fmt: skip


def decomposition(engine: Engine, op: Op) -> Any:
    """A function of one matrix, or of two, of every batch."""
    given = [item for item in op.args if isinstance(item, (Value, torch.Tensor))]
    values = [as_value(engine, item) for item in given]
    rest = op.args[len(given) :]
    batch = values[0].shape[:-2] if values else ()
    if not batch or any(value.shape[:-2] != batch or value.rank < 2 for value in values):
        return replicated(engine, op)
    meta = [torch.empty(value.shape, device="meta", dtype=value.dtype) for value in values]
    made = op.func(*meta, *rest, **op.kwargs)
    shapes = [*(value.shape for value in values), tuple(made.shape)]
    lead = tuple((f"b{dim}",) for dim in range(len(batch)))
    dims = [
        (*lead, *((f"w{number}.{dim}",) for dim in range(len(shape) - len(batch))))
        for number, shape in enumerate(shapes)
    ]
    pairs = [zip(each, shape, strict=True) for each, shape in zip(dims, shapes, strict=True)]
    sizes = {name: size for each in pairs for (name,), size in each}
    key = Key(engine.graph.signatures.nonlinear([value.key.signature for value in values]), shapes[-1])
    call = Call(
        values, dims[:-1], dims[-1:], shapes[-1:], [key], sizes,
        lambda locals_, _: op.func(*locals_, *rest, **op.kwargs),
        frozenset(name for name in sizes if name.startswith("w")),
    )  # fmt: skip
    return engine.run(call)[0]
