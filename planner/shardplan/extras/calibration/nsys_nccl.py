"""What kernels of NCCL move, in an export of Nsight Systems: the payloads that NCCL attaches to ranges of its calls.

A payload is a header of 32 bytes, with the number of its schema, and fields where the schema says (NCCL's
`src/include/nvtx_payload_schemas.h`): the communicator, and the bytes of one rank (what it gives to an all-gather or
gets of a reduce-scatter) or, where a communicator is made, how many ranks it has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardplan.extras.calibration.events import MOST_RANKS, Sent, is_size

_HEADER = struct.Struct("<8xI20x")
_COMMUNICATOR, _BYTES, _RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
_FIELDS: Mapping[int, str] = {
    **dict.fromkeys((5, 6, 15, 16), "<I"),
    **dict.fromkeys((7, 8, 9, 10, 17, 18, 22), "<Q"),
}
"""Types of NVTX's payload entries -> layout: ints of 4 bytes; of 8, `size_t` among them."""
_KINDS: Mapping[str, tuple[str, bool]] = {
    "ncclAllReduce": ("all_reduce", False), "ncclAllGather": ("all_gather", True),
    "ncclReduceScatter": ("reduce_scatter", True), "ncclAlltoAll": ("all_to_all", True),
    "ncclSend": ("send", False), "ncclRecv": ("recv", False),
}  # fmt: skip
"""Calls of NCCL -> collective, and whether its payload is what the call says for every rank."""

Schemas = Mapping[int, Mapping[str, tuple[int, str]]]
"""By number: fields, and where and how each is stored."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of NCCL on a thread, begun at `start_ns`. `kind` is empty for those that move nothing; `ranks`: of the
    communicator that it makes, else 0."""

    start_ns: int
    kind: str
    communicator: int
    moved_bytes: int
    ranks: int
    each_rank: bool = False


def schemas_of(entries: Iterable[tuple[object, ...]]) -> Schemas:
    """From rows of schema number, type, name and offset; those of NCCL alone."""
    found: dict[int, dict[str, tuple[int, str]]] = {}
    for number, kind, name, offset in entries:
        if isinstance(number, int) and name in (_COMMUNICATOR, _BYTES, _RANKS) and kind in _FIELDS:
            place = offset if isinstance(offset, int) and offset >= 0 else 0
            found.setdefault(number, {})[str(name)] = place, _FIELDS[kind]  # type: ignore[index]
    return found


def call_of(start_ns: int, name: str, payload: object, schemas: Schemas) -> Call | None:
    """The call of NCCL that a range is; None for any other range, and for one whose payload is not there."""
    if not name.startswith("nccl"):
        return None
    values = _values(payload, schemas)
    if _COMMUNICATOR not in values:
        return None
    kind, each_rank = _KINDS.get(name, ("", False))
    moved, ranks = values.get(_BYTES, 0), values.get(_RANKS, 0)
    return Call(start_ns, kind if moved else "", values[_COMMUNICATOR], moved, ranks, each_rank)


def _values(payload: object, schemas: Schemas) -> dict[str, int]:
    content = payload if isinstance(payload, bytes) else b""
    if len(content) < _HEADER.size:
        return {}
    (number,) = _HEADER.unpack_from(content)
    found: dict[str, int] = {}
    for name, (offset, layout) in schemas.get(number, {}).items():
        if _HEADER.size + offset + struct.calcsize(layout) <= len(content):
            (value,) = struct.unpack_from(layout, content, _HEADER.size + offset)
            if name == _COMMUNICATOR or is_size(value):
                found[name] = value
    return found


def groups_of(calls: Iterable[tuple[int, Sequence[Call]]]) -> dict[int, tuple[int, ...]]:
    """Ranks of every communicator whose size is told. `calls`: of each thread, with the process it belongs to.

    Which ranks they are nobody says: if `m` of the `p` processes of this export use a communicator of `n` ranks, then
    `m` on each of `n / m` machines do, as far apart as that leaves; one process by itself has its neighbours.
    """
    users: dict[int, set[int]] = {}
    sizes: dict[int, int] = {}
    processes = set()
    for process, own in calls:
        for call in own:
            processes.add(process)
            users.setdefault(call.communicator, set()).add(process)
            if 2 <= call.ranks <= MOST_RANKS:
                sizes[call.communicator] = call.ranks
    count = len(processes)
    found = {}
    for communicator, ranks in sizes.items():
        here = len(users[communicator])
        machines = max(1, ranks // here)
        found[communicator] = tuple(
            machine * count + place * (count // here)
            for machine in range(machines)
            for place in range(ranks // machines)
        )
    return found


def moved_by(
    calls: Sequence[Call], launched_ns: Sequence[int], groups: Mapping[int, tuple[int, ...]], others: tuple[int, ...]
) -> list[Sent | None]:
    """What each kernel of NCCL moves, of those that a thread launched at `launched_ns`, in order.

    A kernel that stands alone between calls moves what the calls before it say, if they are of one kind and one
    communicator. `others`: ranks of the groups that are not in `groups`.
    """
    found: list[Sent | None] = [None] * len(launched_ns)
    waiting: list[Call] = []
    kernels: list[int] = []
    told = sorted(
        [(call.start_ns, -1, call) for call in calls if call.kind]
        + [(start, place, None) for place, start in enumerate(launched_ns)],
        key=lambda each: each[:2],
    )
    for _, place, call in [*told, (0, -1, None)]:
        if call is None and place >= 0:
            kernels.append(place)
            continue
        if kernels:
            if len(kernels) == 1 and waiting:
                found[kernels[0]] = _together(waiting, groups, others)
            kernels, waiting = [], []
        if call is not None:
            waiting.append(call)
    return found


def _together(calls: Sequence[Call], groups: Mapping[int, tuple[int, ...]], others: tuple[int, ...]) -> Sent | None:
    """One kernel for all calls of a group of calls."""
    first, kinds = calls[0], {call.kind for call in calls}
    ranks = groups.get(first.communicator, others)
    if len(ranks) < 2 or {call.communicator for call in calls} != {first.communicator}:
        return None
    if kinds <= {"send", "recv"}:
        return _of_pairs(calls, ranks)
    if len(kinds) > 1:
        return None
    payload = float(sum(call.moved_bytes for call in calls)) * (len(ranks) if first.each_rank else 1)
    return Sent(first.kind, "", payload, ranks)


def _of_pairs(calls: Sequence[Call], ranks: tuple[int, ...]) -> Sent | None:
    """Sends and receives together: one of a kind is a permute, a send for every rank an all-to-all."""
    sends = [call.moved_bytes for call in calls if call.kind == "send"]
    received = [call.moved_bytes for call in calls if call.kind == "recv"]
    if len(sends) <= 1 and len(received) <= 1:
        return Sent("permute", "", float(max(sends + received)), ranks)
    if len(sends) == len(received) == len(ranks):
        return Sent("all_to_all", "", float(sum(sends)), ranks)
    return None
