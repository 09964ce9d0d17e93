"""A plan as Shardy text: the mesh, and a function declaration whose arguments and results carry their shardings.

Source of the syntax: the Shardy dialect (https://openxla.org/shardy/sdy_dialect), `sdy.mesh` and `sdy.sharding`. Every
dim is closed: Shardy may not shard further what the plan has decided.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardplan.export.specs import Spec, cannot_say, segmented, solve_for, specs
from shardplan.export.types import Exported
from shardplan.plan.types import Plan

_TYPES = {
    "float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "float8e4m3fn": "f8E4M3FN",
    "float8e4m3fnuz": "f8E4M3FNUZ", "float8e5m2": "f8E5M2", "float8e5m2fnuz": "f8E5M2FNUZ", "float8e8m0": "f8E8M0FNU",
    "float4e2m1": "f4E2M1FN", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "int4": "i4", "int2": "i2",
    "uint8": "ui8", "uint16": "ui16", "uint32": "ui32", "uint64": "ui64", "uint4": "ui4", "uint2": "ui2", "bool": "i1",
    "complex64": "complex<f32>",
}  # fmt: skip


def export_shardy(plan: Plan) -> Exported:
    """Inputs, then parameters by checkpoint name and in the checkpoint's dims, and outputs; one per line.

    Refused where a fused dim is cut by segments, where values are partial in another way than as sums, and for types
    that have no name in MLIR.
    """
    hint = f"shardplan.jax loads and pins such a plan; {solve_for('shardy')}"
    refused = cannot_say("shardy", "that a dim is cut by segments", segmented(plan), hint)
    refused += cannot_say("shardy", "that partial values are not sums", _other_reductions(plan))
    arguments = (*specs(plan, "input"), *specs(plan, "parameter"))
    results = specs(plan, "output")
    unknown = [f"{spec.name}: {spec.dtype}" for spec in (*arguments, *results) if spec.dtype not in _TYPES]
    refused += cannot_say("shardy", "these types", unknown)
    if refused:
        return Exported(refused=tuple(refused))
    axes = ", ".join(f"{_quoted(axis.name)}={axis.size}" for axis in plan.mesh.axes)
    given = ",\n".join(f"      {_typed(spec)}" for spec in arguments)
    made = ",\n".join(f"      {_typed(spec)}" for spec in results)
    name = _quoted(str(plan.model.get("name", "main")))
    lines = [
        f"module @{name} {{",
        f"  sdy.mesh @mesh = <[{axes}]>",
        "  func.func private @main(",
        given,
        "  ) -> (",
        made,
        "  )",
        "}",
    ]
    return Exported("\n".join(lines) + "\n")


def _typed(spec: Spec) -> str:
    """`tensor<8x16xf32> {shardplan.name = "x", sdy.sharding = #sdy.sharding<@mesh, [{"gpu"}, {}]>}`."""
    shape = "".join(f"{size}x" for size in spec.shape)
    dims = ", ".join("{" + _listed(axes) + "}" for axes in spec.axes)
    unreduced = f", unreduced={{{_listed(spec.partial)}}}" if spec.partial else ""
    attributes = f"shardplan.name = {_quoted(spec.name)}, sdy.sharding = #sdy.sharding<@mesh, [{dims}]{unreduced}>"
    return f"tensor<{shape}{_TYPES[spec.dtype]}> {{{attributes}}}"


def _listed(axes: tuple[str, ...]) -> str:
    return ", ".join(_quoted(axis) for axis in axes)


def _quoted(text: str) -> str:
    """A string of MLIR, which knows no escape but that of a byte as two hexadecimal digits."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else _bytes(c) for c in text) + '"'


def _bytes(character: str) -> str:
    return "".join(f"\\{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _other_reductions(plan: Plan) -> Iterator[str]:
    for tensor in plan.tensors:
        kinds = {p.reduction for p in tensor.layout.placements if p.kind == "P"} - {"sum"}
        if kinds and tensor.role in {"input", "output"}:
            yield f"{tensor.name}: {', '.join(sorted(kinds))}"
