"""Primitives that each device runs on its own rows, under `shard_map`.

XLA gathers the operands of some primitives in whatever dims they are split, though rows have nothing to do with each
other: of Fourier transforms, of `top_k`, and of convolutions by groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

Specs = tuple[PartitionSpec, ...]


def by_rows(mesh: Mesh, equation: Any, spec: PartitionSpec) -> Callable[..., Any] | None:
    """The equation as a function that runs on the rows of each device, for results that are split as `spec` says; None
    where XLA does as well, and where a dim is split that the primitive works along."""
    name, params = equation.primitive.name, dict(equation.params)
    run: Callable[..., Any] = equation.primitive.bind
    specs = None
    if name == "conv_general_dilated":
        run, specs = jax.lax.conv_general_dilated, _grouped(mesh, params, spec)
    elif name in _ALONG and _TYPED and not _is_split(spec, _ALONG[name](params, equation.invars[0].aval.ndim)):
        specs = (spec,) * len(equation.invars)
    if specs is None or not any(spec):
        return None

    def own(*operands: Any) -> Any:
        return run(*operands, **params)

    made: Callable[..., Any] = jax.shard_map(own, mesh=mesh, in_specs=specs, out_specs=spec)
    return made


def _is_split(spec: PartitionSpec, dims: Sequence[int]) -> bool:
    """Whether one of the dims is split."""
    return any(spec[dim] for dim in dims if dim < len(spec))


def _grouped(mesh: Mesh, params: dict[str, Any], spec: PartitionSpec) -> Specs | None:
    """The operands of a convolution by groups whose result is split by rows and by groups alone; `params` are then
    those of one device."""
    numbers = params["dimension_numbers"]
    rows, features, *others = numbers.out_spec
    axes = spec[features] if features < len(spec) else None
    sizes = [mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ())]
    groups, left = divmod(params["feature_group_count"], math.prod(sizes))
    if params["feature_group_count"] == 1 or left or _is_split(spec, others):
        return None
    params["feature_group_count"] = groups
    operand, kernel = [None] * len(numbers.lhs_spec), [None] * len(numbers.rhs_spec)
    operand[numbers.lhs_spec[0]] = spec[rows] if rows < len(spec) else None
    operand[numbers.lhs_spec[1]] = kernel[numbers.rhs_spec[0]] = axes
    return PartitionSpec(*operand), PartitionSpec(*kernel)


_TYPED = jax.__version_info__ >= (0, 10)
"""Whether JAX types the results of these primitives as different on the devices; 0.8 does not, and has no gradients."""
_ALONG: Mapping[str, Callable[[Mapping[str, Any], int], Sequence[int]]] = {
    "fft": lambda params, rank: range(rank - len(params["fft_lengths"]), rank),
    "top_k": lambda params, rank: [params.get("axis", -1) % rank],
    "sort": lambda params, _: [params["dimension"]],
}
"""Along which dims primitives work whose operands are split as their results are."""
