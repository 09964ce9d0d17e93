"""A hand-made plan of a two-layer transformer on 4 x 4 devices, as the planner would write it, to test readers with.

Batch is split over `machine`; attention and MLP weights are column- and row-sharded over `gpu`; the residual stream is
split by sequence between them; the norms are replicated and the embedding is stored cut over both axes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from shardplan.layout.collective import Collective
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import RP, P, R, S
from shardplan.plan.types import (
    CollectiveStep,
    Memory,
    Move,
    OperatorDecision,
    Plan,
    Summary,
    TensorDecision,
)

MESH = Mesh.of(machine=4, gpu=4)
MACHINE, GPU = 0, 1
BATCH, SEQUENCE, HIDDEN, VOCABULARY = 32, 512, 1024, 32000
ACTIVATION = (BATCH, SEQUENCE, HIDDEN)
TOKENS = Layout.of(S(0), S(1))
"""Batch over machine, sequence over gpu."""
GATHERED = Layout.of(S(0), RP)
QKV = (HIDDEN, HIDDEN, HIDDEN)


def example_plan(**changes: object) -> Plan:
    """The plan; `changes` replace fields of it."""
    fields: dict[str, object] = {
        "model": {
            "name": "two_layers",
            "digest": "sha256:5d1c0f2a",
            "mode": "training",
            "dims": {"batch": BATCH, "sequence": SEQUENCE},
            "optimizer": "adam-mixed",
            "remat": "none",
            "microbatches": 1,
        },
        "cluster": {
            "name": "h100-dgx",
            "digest": "sha256:77aa01bc",
            "profile": {"name": "h100-dgx", "levels": [{"name": "up", "topology": "switch"}, {"name": "net"}]},
        },
        "mesh": MESH,
        "axis_links": ("net", "up"),
        "summary": example_summary(),
        "tensors": (*_parameters(), *_boundary(), *_activations()),
        "operators": tuple(_operators()),
        "moves": tuple(_moves()),
        "blocks": ((("layers.0", "layers.1"), ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10))),),
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]


def example_summary(**changes: object) -> Summary:
    """A summary of which every number differs; `changes` as in `changed_summary`."""
    summary = Summary(
        outcome="optimal",
        objective_ns=41_234_567,
        bound_ns=41_234_567,
        gap=0.0,
        step_ns=41_234_567,
        compute_ns=33_100_001,
        communication_ns=8_134_566,
        hidden_ns=2_000_500,
        memory=Memory(
            parameters=1_500_000_000,
            gradients=1_400_000_000,
            optimizer=5_600_000_000,
            activations=21_000_000_000,
            temporaries=700_000_000,
        ),
        memory_limit_bytes=76_000_000_000,
    )
    return changed_summary(summary, **changes)


def changed_summary(summary: Summary, **changes: object) -> Summary:
    """`summary` with `changes`, and with what follows from them: communication and objective from the step, the bound
    from the gap; or, with a bound, the gap from it."""
    wanted = replace(summary, **changes)  # type: ignore[arg-type]
    step_ns = wanted.step_ns
    compute_ns = min(wanted.compute_ns, step_ns)
    bound_ns = min(wanted.bound_ns if "bound_ns" in changes else round(step_ns * (1.0 - wanted.gap)), step_ns)
    return replace(
        wanted,
        objective_ns=step_ns,
        compute_ns=compute_ns,
        communication_ns=step_ns - compute_ns,
        bound_ns=bound_ns,
        gap=(step_ns - bound_ns) / step_ns if step_ns else 0.0,
    )


def _parameter(name: str, shape: tuple[int, ...], layout: Layout, **fields: object) -> TensorDecision:
    """`shape` and `layout` in graph orientation."""
    shards = MESH.ways([axis for axis, placement in enumerate(layout.placements) if placement.is_shard])
    known: dict[str, object] = {"checkpoint": name, "onnx": name, "trainable": True, "served": layout}
    return TensorDecision(
        name=f"{name}.value",
        role="parameter",
        shape=shape,
        dtype="bfloat16",
        layout=layout,
        bytes_per_device=2 * math.prod(shape) // shards,
        **{**known, **fields},  # type: ignore[arg-type]
    )


def _parameters() -> list[TensorDecision]:
    embedding = Layout.of(S(0), S(0), order=(GPU, MACHINE))
    rows = [
        _parameter(
            "embed.weight", (VOCABULARY, HIDDEN), embedding, served=Layout.of(RP, S(0)), aliases=("head.weight",)
        )
    ]
    for layer in range(2):
        name = f"layers.{layer}"
        rows += [
            _parameter(f"{name}.norm.weight", (HIDDEN,), Layout.of(R, R)),
            _parameter(
                f"{name}.attention.qkv.weight",
                (HIDDEN, 3 * HIDDEN),
                Layout.of(R, S(1, QKV)),
                onnx=f"val_{layer}",
                perm=(1, 0),
            ),
            _parameter(f"{name}.attention.out.weight", (HIDDEN, HIDDEN), Layout.of(R, S(0)), perm=(1, 0)),
            _parameter(
                f"{name}.mlp.up.weight", (HIDDEN, 4 * HIDDEN), Layout.of(S(0), S(1)), served=Layout.of(RP, S(1))
            ),
            _parameter(f"{name}.mlp.down.weight", (4 * HIDDEN, HIDDEN), Layout.of(R, S(0))),
        ]
    return rows


def _boundary() -> list[TensorDecision]:
    tokens = TensorDecision(
        "input_ids", "input", (BATCH, SEQUENCE), "int64", TOKENS, TOKENS, bytes_per_device=8 * BATCH * SEQUENCE // 16
    )
    loss = TensorDecision("loss", "output", (), "float", Layout.of(P(), P()), Layout.of(P(), P()), bytes_per_device=4)
    return [tokens, loss]


def _activation(name: str, layout: Layout, served: Layout) -> TensorDecision:
    shards = 16 if layout == TOKENS else 4
    bytes_per_device = 2 * BATCH * SEQUENCE * HIDDEN // shards
    return TensorDecision(name, "activation", ACTIVATION, "bfloat16", layout, served, bytes_per_device, saved=True)


def _activations() -> list[TensorDecision]:
    rows = [_activation("x0", TOKENS, TOKENS)]
    for layer in range(2):
        rows.append(_activation(f"norm_{layer}", TOKENS, GATHERED))
        rows.append(_activation(f"attention_{layer}", TOKENS, TOKENS))
        rows.append(_activation(f"x{layer + 1}", TOKENS, TOKENS))
    mask = Layout.replicated(2)
    rows.append(TensorDecision("mask", "constant", (SEQUENCE, SEQUENCE), "bool", mask, mask, SEQUENCE * SEQUENCE))
    return rows


ROW_RESULT = Layout.of(S(0), P())
SHARDED = Layout.of(S(0), S(2))
PRODUCT = "b s k, k n -> b s n"


def _operator(
    name: str, equation: str, split: tuple[str, str], reads: dict[str, Layout], made: tuple[str, Layout]
) -> OperatorDecision:
    """`reads`: name -> layout of each operand; `made`: name and layout of the result."""
    module, _, op_type = name.rpartition("/")
    return OperatorDecision(
        name=name,
        op_type=op_type,
        module=module.replace("/", "."),
        equation=equation,
        split=split,
        reads=tuple(reads.values()),
        makes=(made[1],),
        compute_ns=1_234_567,
        inputs=tuple(reads),
        outputs=(made[0],),
    )


def _operators() -> list[OperatorDecision]:
    reads = {"embed.weight.value": Layout.of(RP, S(0)), "input_ids": Layout.of(S(0), R)}
    rows = [_operator("embed/Gather", "v d, b s -> b s d", ("b", "v"), reads, ("x0", ROW_RESULT))]
    for layer in range(2):
        rows += _layer(f"layers.{layer}", layer)
    reads = {"x2": GATHERED, "embed.weight.value": Layout.of(RP, S(0))}
    rows.append(_operator("head/MatMul", "b s k, n k -> b s n", ("b", "n"), reads, ("logits", SHARDED)))
    return rows


def _layer(name: str, layer: int) -> list[OperatorDecision]:
    def product(part: str, source: str, made: str, weight: Layout, result: Layout) -> OperatorDecision:
        reads = {source: GATHERED if result == SHARDED else SHARDED, f"{name}.{part}.weight.value": weight}
        split = ("b", "n" if result == SHARDED else "k")
        return _operator(f"{name}.{part}".replace(".", "/") + "/MatMul", PRODUCT, split, reads, (made, result))

    scale = {f"x{layer}": TOKENS, f"{name}.norm.weight.value": Layout.of(RP, RP)}
    norm = f"{name}.norm".replace(".", "/") + "/RMSNormalization"
    return [
        _operator(norm, "b s !d, d -> b s d", ("b", "s"), scale, (f"norm_{layer}", TOKENS)),
        product("attention.qkv", f"norm_{layer}", f"qkv_{layer}", Layout.of(RP, S(1, QKV)), SHARDED),
        product("attention.out", f"heads_{layer}", f"attention_{layer}", Layout.of(RP, S(0)), ROW_RESULT),
        product("mlp.up", f"attention_{layer}", f"up_{layer}", Layout.of(RP, S(1)), SHARDED),
        product("mlp.down", f"up_{layer}", f"x{layer + 1}", Layout.of(RP, S(0)), ROW_RESULT),
    ]


def _step(kind: str, axes: tuple[int, ...], share: Fraction, payload_bytes: int, time_ns: int) -> CollectiveStep:
    return CollectiveStep(Collective(kind, axes, share), payload_bytes, time_ns)  # type: ignore[arg-type]


def _moves() -> list[Move]:
    partial = Layout.of(S(0), P())
    gather = _step("all_gather", (GPU,), Fraction(1, 4), 8_388_608, 93_000)
    scatter = _step("reduce_scatter", (GPU,), Fraction(1, 4), 8_388_608, 95_000)
    reduce = _step("all_reduce", (MACHINE,), Fraction(1, 4), 2_097_152, 171_000)
    moves = []
    for layer in range(2):
        moves += [
            Move(f"norm_{layer}", TOKENS, GATHERED, "", "forward", (gather,)),
            Move(f"norm_{layer}", TOKENS, GATHERED, "", "backward", (scatter,)),
            Move(f"norm_{layer}", TOKENS, GATHERED, "", "backward", (gather,), regather=True),
            Move(f"attention_{layer}", partial, TOKENS, "", "forward", (scatter,)),
            Move(f"attention_{layer}", partial, TOKENS, "", "backward", (gather,)),
            Move(
                f"layers.{layer}.attention.qkv.weight.value",
                Layout.of(R, S(1, QKV)),
                Layout.of(RP, S(1, QKV)),
                f"layers/{layer}/attention/qkv/MatMul",
                "backward",
                (reduce,),
                count=2,
                hidden=0.9,
            ),
        ]
    return moves
