"""Kernels of programs that run as they are written (eager PyTorch), and their memory traffic beyond that of fused ones.

A graph has one operator for what such a program does in several: a norm in fp32 is eight kernels forward. The table
counts them in the modules of transformers 5 in 16 bits (`LlamaRMSNorm`, `apply_rotary_pos_emb`, `LlamaMLP`,
`NewGELUActivation`) and in torch's derivatives of each step (`tools/autograd/derivatives.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardplan.plan.types import Plan


@dataclass(frozen=True, slots=True)
class Unfused:
    """Of one operator: kernels `forward` and `backward`; `more`, `more_back`: how many times the bytes of its result
    these read and write in forward and in backward, in addition to what a fused kernel does."""

    forward: int
    backward: int
    more: int = 0
    more_back: int = 0


KERNELS: Final[Mapping[str, Unfused]] = {
    # to fp32, square, mean, epsilon, root, product, back to 16 bits, weight: 18 passes in place of 2, 46 of 3
    "RMSNormalization": Unfused(8, 16, 16, 43),
    # product with cosines, halves negated and joined, product with sines, sum: 10 in place of 2, 15 of 2
    "RotaryEmbedding": Unfused(5, 9, 8, 13),
    # SiLU, and the product with what it gates: 5 in place of 3, 9 of 5
    "Sigmoid": Unfused(2, 3, 2, 4),
    "Mul": Unfused(0, 0),
    # GELU by tanh, step by step: 18 in place of 2, 31 of 3
    "Gelu": Unfused(8, 12, 16, 28),
    "MatMul": Unfused(1, 2), "Gemm": Unfused(1, 2), "Einsum": Unfused(2, 4), "Attention": Unfused(2, 4),
    "LayerNormalization": Unfused(1, 2), "Softmax": Unfused(2, 2), "Add": Unfused(1, 1), "Gather": Unfused(1, 3),
    "GatherND": Unfused(1, 2), "TopK": Unfused(1, 2), "OneHot": Unfused(2, 0), "CumSum": Unfused(1, 0),
    "Reshape": Unfused(0, 0), "Transpose": Unfused(0, 0), "Split": Unfused(0, 0), "Unsqueeze": Unfused(0, 0),
}  # fmt: skip
"""Views start nothing; an operator that is not listed is a kernel forward and one backward."""
_OTHER: Final = Unfused(1, 1)


def unfused_of(plan: Plan, recomputed: float) -> tuple[float, float]:
    """Kernels of a microbatch, and the bytes that they move beyond those of fused kernels. `recomputed`: share of
    forward that runs again in backward."""
    sizes = {tensor.name: tensor.bytes_per_device for tensor in plan.tensors}
    kernels = moved = 0.0
    for operator in plan.operators:
        each = KERNELS.get(operator.op_type, _OTHER)
        kernels += (1 + recomputed) * each.forward + each.backward
        made = sizes.get(operator.outputs[0], 0) if operator.outputs else 0
        moved += ((1 + recomputed) * each.more + each.more_back) * made
    return kernels, moved
