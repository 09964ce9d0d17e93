"""Group-quantised weights: packed values, scales, zero points and group numbers share one decision.

A plan decides about the weight `[out, in]`, as the checkpoint of the unquantised model has it. A quantised checkpoint
has several tensors in its place. Each of their dims is a dim of the weight in larger steps: one int32 of packed values
is eight weights of 4 bits, one scale is a group of 128. A shard of the weight is a shard of every member if its bounds
are multiples of these steps; so the same quantised checkpoint serves every plan with such shards, without quantising
again.

| format        | values              | scales          | zero points         | group numbers |
|---------------|---------------------|-----------------|---------------------|---------------|
| `gptq`        | `[in/p, out]`       | `[in/g, out]`   | `[in/g, out/p]`     | `[in]`        |
| `awq`         | `[in, out/p]`       | `[in/g, out]`   | `[in/g, out/p]`     |               |
| `mlc`         | `[out, in/p]`       | `[out, in/g]`   |                     |               |
| `matmulnbits` | `[out, in/g, g/p]`  | `[out, in/g]`   | `[out, in/g/p]`     |               |

Sources: AutoGPTQ and AutoAWQ `WQLinear` buffers, MLC-LLM `group_quantization.py` (NK layout), ONNX Runtime's
`MatMulNBits` (whose scales and zero points may also be flat).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from shardplan.errors import Diagnostic, ShardplanError, error
from shardplan.runtime.shards import Run, Runs, Shard

OUT, IN = 0, 1
_DIM_NAMES = {OUT: "output", IN: "input"}


@dataclass(frozen=True, slots=True)
class Steps:
    """How a dim of a member follows a dim of the weight: every `elements` weights are `indices` entries.

    `dim` None: the dim is no dim of the weight and is never cut. 3-bit values have 32 elements in 3 words.
    """

    dim: int | None
    elements: int = 1
    indices: int = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One tensor of a unit. `view`: its shape with one dim for each of `steps`; `stored`: as it is in the file."""

    name: str
    role: str
    stored: tuple[int, ...]
    view: tuple[int, ...]
    steps: tuple[Steps, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """The tensors that stand for the weight `name` of `shape` [out, in]."""

    name: str
    form: str
    shape: tuple[int, int]
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class MemberShard:
    """What a rank holds of a member. `shard`: of the member in its `view`; `local_shape`: as a file stores it.

    `groups`: for group numbers, the runs of groups that the rank holds, in its order: they are numbered anew from 0.
    """

    member: Member
    shard: Shard
    groups: tuple[Run, ...] = ()

    @property
    def local_shape(self) -> tuple[int, ...]:
        local = self.shard.local_shape
        return (math.prod(local),) if len(self.member.stored) < len(local) else local


_FORMS: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "gptq": {
        "values": ((".qweight",), "k n"),
        "scales": ((".scales",), "k n"),
        "zeros": ((".qzeros",), "k n"),
        "groups": ((".g_idx",), "k"),
    },
    "awq": {"values": ((".qweight",), "k n"), "scales": ((".scales",), "k n"), "zeros": ((".qzeros",), "k n")},
    "mlc": {"values": ((".q_weight",), "n k"), "scales": ((".q_scale",), "n k")},
    "matmulnbits": {
        "values": ((".weight_Q4", ".weight_quant", ".qweight_nbits", "_Q4"), "n k *"),
        "scales": ((".weight_scales", ".weight_scale", ".scales", "_scales"), "n k"),
        "zeros": ((".weight_zp", ".weight_zero_points", ".zero_points", "_zp", "_zero_points"), "n k"),
    },
}
"""Form -> role -> (suffixes after the module's name, dims): `n` output, `k` input, `*` never cut."""
_OPTIONAL = frozenset({"zeros", "groups"})


def find_unit(name: str, shape: Sequence[int], present: Mapping[str, Sequence[int]]) -> Unit | None:
    """The unit that stands for the weight `name` of `shape` [out, in] among the tensors `present` (name -> shape).

    None if there is none. The form follows from the names and, between GPTQ and AWQ, from the shape of the values.
    """
    if len(shape) != 2:
        return None
    module = name.removesuffix(".weight")
    for form, roles in _FORMS.items():
        members = [
            _member(form, role, module, spelled, (shape[0], shape[1]), present) for role, spelled in roles.items()
        ]
        needed = [member for member, role in zip(members, roles, strict=True) if role not in _OPTIONAL]
        if all(needed):
            return Unit(name, form, (shape[0], shape[1]), tuple(member for member in members if member))
    return None


def unit_shards(unit: Unit, shard: Shard) -> tuple[MemberShard, ...]:
    """What a rank that holds `shard` of the weight holds of every member.

    Raises `ShardplanError` (`cut-group`), with what would help, if a bound of the shard is inside a group or a packed
    word.
    """
    faults = _faults(unit, shard)
    if faults:
        raise ShardplanError(*faults)
    return tuple(_member_shard(unit, member, shard) for member in unit.members)


def _member(
    form: str, role: str, module: str, spelled: tuple[tuple[str, ...], str], shape: tuple[int, int],
    present: Mapping[str, Sequence[int]],
) -> Member | None:  # fmt: skip
    suffixes, text = spelled
    name = next((module + suffix for suffix in suffixes if module + suffix in present), "")
    if not name:
        return None
    stored, letters = tuple(present[name]), text.split()
    dims: list[int | None] = [{"n": OUT, "k": IN, "*": None}[letter] for letter in letters]
    view = stored
    if len(stored) == 1 and len(dims) == 2 and stored[0] % shape[OUT] == 0:
        view = (shape[OUT], stored[0] // shape[OUT])
    if len(view) != len(dims):
        return None
    steps = tuple(_steps(role, dim, size, shape) for dim, size in zip(dims, view, strict=True))
    found = Member(name, role, stored, view, steps)
    return found if _fits(form, role, found) else None


def _steps(role: str, dim: int | None, size: int, shape: tuple[int, int]) -> Steps:
    """How a dim of `size` follows dim `dim` of the weight, from the sizes alone.

    A last group that is not full shows as a ratio that no format has (a power of two below the group size would take a
    single group); such a dim is only taken whole. A single scale for all is shared however the weight is cut.
    """
    if dim is None or not size or not shape[dim] or (size == 1 and role == "scales"):
        return Steps(None)
    ratio = Fraction(shape[dim], size)
    is_known = (role in _PACKED and ratio in _PER_WORD) or (ratio.denominator == 1 and _is_group(ratio.numerator))
    return Steps(dim, ratio.numerator, ratio.denominator) if is_known else Steps(dim, shape[dim], size)


_PACKED = frozenset({"values", "zeros"})
_PER_WORD = frozenset({Fraction(w, b) for w in (8, 16, 32) for b in (1, 2, 3, 4, 8)} | {Fraction(10), Fraction(5)})
"""Values per word: words of 8, 16 or 32 bits full of values of 1 to 8; MLC leaves two bits (or one) of a word empty."""


def _is_group(elements: int) -> bool:
    return elements & (elements - 1) == 0 or elements == 40  # MLC's 3-bit groups


def _fits(form: str, role: str, member: Member) -> bool:
    """Which dim of the values is packed tells GPTQ from AWQ; scales are whole groups, so one entry each."""
    if role == "values" and form in {"gptq", "awq"}:
        rows, columns = (steps.elements != steps.indices for steps in member.steps)
        return not columns if form == "gptq" else columns and not rows
    if role == "groups":
        return member.steps[0] == Steps(IN)
    return True


def _member_shard(unit: Unit, member: Member, shard: Shard) -> MemberShard:
    runs = _member_runs(member, shard)
    moved = replace(shard, tensor=member.name, shape=member.view, runs=runs, dtype="")
    if member.role != "groups":
        return MemberShard(member, moved)
    scales = next(other for other in unit.members if other.role == "scales")
    return MemberShard(member, moved, _member_runs(scales, shard)[0])


def _member_runs(member: Member, shard: Shard) -> Runs:
    return tuple(
        ((0, size),) if steps.dim is None else tuple(_scaled(run, steps) for run in shard.runs[steps.dim])
        for size, steps in zip(member.view, member.steps, strict=True)
    )


def _scaled(run: Run, steps: Steps) -> Run:
    start, stop = (bound * steps.indices // steps.elements for bound in run)
    return start, stop


def _faults(unit: Unit, shard: Shard) -> list[Diagnostic]:
    """One fault per dim: the coarsest member whose steps the bounds miss."""
    found = []
    for dim in (OUT, IN):
        missed = [
            (steps, member)
            for member in unit.members
            for steps in member.steps
            if steps.dim == dim and any(bound % steps.elements for run in shard.runs[dim] for bound in run)
        ]
        if missed:
            steps, member = max(missed, key=lambda pair: pair[0].elements)
            found.append(_cut_group(unit, shard, dim, steps, member))
    return found


def _cut_group(unit: Unit, shard: Shard, dim: int, steps: Steps, member: Member) -> Diagnostic:
    size, local = unit.shape[dim], sum(stop - start for start, stop in shard.runs[dim])
    detail = f"{member.name} {list(member.stored)} holds {steps.elements} in {steps.indices}"
    if steps.elements == size:
        summary = f"'{unit.name}': its {_DIM_NAMES[dim]} dim of {size} is not made of whole groups, so it cannot be cut"
        return error("cut-group", summary, detail=detail, hint="keep this dim of the weight whole (--pin)")
    what = "group" if member.role == "scales" else "packed word"
    summary = (
        f"'{unit.name}': {local} of {size} along its {_DIM_NAMES[dim]} dim per device would cut a {what} of "
        f"{steps.elements} quantised values"
    )
    groups, ways = size // steps.elements, size // local
    fewer = max(n for n in range(1, ways + 1) if groups % n == 0)
    smaller = math.gcd(*(bound for run in shard.runs[dim] for bound in run), steps.elements)
    remedies = [f"shard it over fewer devices ({fewer} or a divisor of the {groups} {what}s)"]
    if member.role == "scales" and smaller > 1:
        remedies.append(f"quantise with groups of {smaller} or fewer")
    return error("cut-group", summary, detail=detail, hint=", or ".join(remedies))
