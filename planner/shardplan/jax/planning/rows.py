"""Primitives that each device runs on its own rows, under `shard_map`.

XLA gathers the operands of some primitives in whatever dims they are split, though rows have nothing to do with each
other: of Fourier transforms, of `top_k`, and of convolutions by groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

Specs = tuple[PartitionSpec, ...]


def by_rows(mesh: Mesh, equation: Any, spec: PartitionSpec) -> Callable[..., Any] | None:
    """The equation as a function that runs on the rows of each device, for results that are split as `spec` says; None
    where XLA does as well, and where a dim is split that the primitive works along."""
    name = equation.primitive.name
    specs = _SPECS[name](equation, spec) if name in _SPECS and any(spec) else None
    if specs is None:
        return None
    run = jax.lax.conv_general_dilated if name == "conv_general_dilated" else equation.primitive.bind

    def own(*operands: Any) -> Any:
        return run(*operands, **equation.params)

    made: Callable[..., Any] = jax.shard_map(own, mesh=mesh, in_specs=specs, out_specs=spec)
    return made


def _alike(along: Callable[[Any, int], Sequence[int]]) -> Callable[[Any, PartitionSpec], Specs | None]:
    """Operands that are split as the results are, unless it is in a dim that the primitive works along."""

    def specs(equation: Any, spec: PartitionSpec) -> Specs | None:
        whole = along(equation.params, equation.invars[0].aval.ndim)
        return None if any(spec[dim] for dim in whole if dim < len(spec)) else (spec,) * len(equation.invars)

    return specs


def _grouped(equation: Any, spec: PartitionSpec) -> Specs | None:
    """A convolution by groups whose result is split by rows alone, with a whole kernel."""
    numbers = equation.params["dimension_numbers"]
    rows, *others = numbers.out_spec
    if equation.params["feature_group_count"] == 1 or any(spec[dim] for dim in others if dim < len(spec)):
        return None
    place = numbers.lhs_spec[0]
    return PartitionSpec(*[None] * place, spec[rows]), PartitionSpec()


_SPECS: Mapping[str, Callable[[Any, PartitionSpec], Specs | None]] = {
    "fft": _alike(lambda params, rank: range(rank - len(params["fft_lengths"]), rank)),
    "top_k": _alike(lambda params, rank: [params.get("axis", -1) % rank]),
    "sort": _alike(lambda params, _: [params["dimension"]]),
    "conv_general_dilated": _grouped,
}
"""How the operands are split for results that are split in a given way, by the name of the primitive."""
