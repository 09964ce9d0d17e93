"""What tools print about a machine, read: `nvidia-smi topo -m`, `nvidia-smi --query-gpu=... --format=csv`, rates of
network cards (`/sys/class/infiniband/*/ports/1/rate`, `ibstat`), `scontrol show node`, `lstopo --of xml`.

Every text says what it is by its form. What a text does not say stays `None`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from shardplan.errors import ShardplanError, error
from shardplan.extras.detect.hwloc import cards_of, gpus_of, is_hwloc
from shardplan.launch.hosts import host_names
from shardplan.units import whole_number

_GPU = re.compile(r"GPU\d+")
_NIC = re.compile(r"NIC\d+|mlx\d+_\d+|rdmap\S+|bnxt_re\d+")
_CALLED = re.compile(r"^\s*(NIC\d+): ([\w.-]{1,64})\s*$", re.MULTILINE)
_NVLINKS = re.compile(r"NV(\d{1,9})")
_ONE_SWITCH = frozenset({"PIX", "PXB"})
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_RATE = re.compile(r"^\s*(?:Rate:\s*)?(\d{1,9})(?: Gb/sec.*)?$")
_STATE = re.compile(r"^\s*(?:State|\d+):\s*(\w+)\s*$")
_GRES = re.compile(r"(?:Gres|CfgTRES)=\S*?gpu(?::([A-Za-z][\w.-]*))?[:=](\d{1,9})")
_NODE = re.compile(r"^\s*NodeName=(\S+)", re.MULTILINE)
_MIG = re.compile(r"^\s+MIG \d+\w*\.\d+gb|^.*\bmig\.mode\.current(?:.*\n)+?.*\bEnabled\b", re.MULTILINE)
_OTHERS = (
    (re.compile("ROCm System Management|AMDSMI|^GPU: \\d+\\s+BDF:", re.MULTILINE), "what tools of AMD print"),
    (
        re.compile(r"^SwitchName=", re.MULTILINE),
        "SLURM's topology.conf, which says how nodes are wired and not what they are",
    ),
    (re.compile(r"^NVIDIA-SMI has failed", re.MULTILINE), "nvidia-smi's word that it found no driver"),
)
"""Texts that one may take for those that are read."""
_PCIE_LANE = {"3": 0.985, "4": 1.969, "5": 3.938, "6": 7.563}
"""GB/s of one lane in one direction, by generation: 8, 16, 32 GT/s in 130 bits for 128, and 64 GT/s in flits."""
_SAME_MEMORY = 0.03
"""Share by which two libraries may differ in what they call the memory of a GPU."""
PCIE = frozenset({"PIX", "PXB", "PHB", "NODE", "SYS"})
"""How `topo -m` calls ways that are no NVLink."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of one machine, and of how many like it there are. `devices`: GPUs; `links`: what joins pairs of
    them, each kind once (`NV18`, `SYS`); `joined`: how many consecutive ones NVLink joins, where these are groups of
    equal size and links with PCIe between them; `pcie_gbps`: of a GPU in one direction; `memory_mib`: of one; `nics`:
    its network cards, and `near_nics` those that share a PCIe switch with a GPU, where some do (the others are for
    storage and management), with their `near_names` where the text has all of them; `nic_gbit`: rates of connected
    ones, and `down_nics` how many are not connected."""

    kind: str | None = None
    devices: int | None = None
    memory_mib: int | None = None
    links: tuple[str, ...] = ()
    joined: int | None = None
    pcie_gbps: int | None = None
    nics: int | None = None
    near_nics: int | None = None
    near_names: tuple[str, ...] = ()
    nic_gbit: tuple[int, ...] = ()
    down_nics: int | None = None
    machines: int | None = None

    @property
    def nvlinks(self) -> int | None:
        """NVLinks of every pair, where all pairs have as many, or all pairs of each group that NVLink joins."""
        found = {match[1] for link in self.links if (match := _NVLINKS.fullmatch(link))}
        return int(found.pop()) if len(found) == 1 and (len(self.links) == 1 or self.joined) else None

    @property
    def used_gbit(self) -> tuple[int, ...]:
        """Rates of the cards that carry what GPUs send: the fastest ones, where some are not beside a GPU."""
        return self.nic_gbit[-self.near_nics :] if self.near_nics else self.nic_gbit


def machine_of(texts: Iterable[tuple[str, str]]) -> Machine:
    """What all texts say together; a text is (where it is from, what it says).

    Raises `ShardplanError`: `unread-capture` for a text of none of these forms, or one that is torn, `divided-device`
    for GPUs that MIG divides, `mixed-devices` for several kinds, `other-machine` where two texts say different things.
    """
    found = Machine()
    for place, text in texts:
        plain = _ESCAPES.sub("", text)
        if _MIG.search(plain):
            hint = "nvidia-smi -mig 0 makes them whole; for parts, write a profile with what one of them has"
            raise ShardplanError(error("divided-device", "MIG divides these GPUs", file=place, hint=hint))
        for form, what in _OTHERS:
            if form.search(plain):
                raise _unread(f"this is {what}", place)
        forms = (_hwloc, _topology, _query, _slurm, _rates, _modes)
        try:
            said = next(filter(None, (form(plain) for form in forms)), None)
        except EOFError as torn:
            raise ShardplanError(error("unread-capture", f"the end is missing: {torn}", file=place)) from None
        if said is None:
            raise _unread("this is none of the known texts", place)
        found = _joined(found, said, place)
        rates = len(found.nic_gbit)
        if found.nics and rates and rates + (found.down_nics or 0) not in (found.nics, found.near_nics):
            raise _other(f"nics: {rates} rates, and another text says {found.nics}", place)
    return found


def _unread(summary: str, place: str) -> ShardplanError:
    hint = "give what nvidia-smi topo -m, nvidia-smi --query-gpu=name,memory.total --format=csv, ibstat, "
    hint += "scontrol show node or lstopo --of xml print; shardplan profiles lists what is shipped for other machines"
    return ShardplanError(error("unread-capture", summary, file=place, hint=hint))


def _modes(text: str) -> Machine | None:
    """`nvidia-smi --query-gpu=mig.mode.current --format=csv` of GPUs that are whole."""
    return Machine() if text.startswith("mig.mode.current") else None


def _other(said: str, place: str) -> ShardplanError:
    return ShardplanError(error("other-machine", said, file=place, hint="give texts of one machine"))


def _joined(one: Machine, other: Machine, place: str) -> Machine:
    """Both together; what they both say must agree."""
    changed = {}
    for name in (field.name for field in fields(Machine)):
        before, now = getattr(one, name), getattr(other, name)
        if now in (None, ()):
            continue
        is_size = name == "memory_mib" and before is not None and abs(now / before - 1.0) < _SAME_MEMORY
        if before not in (None, ()) and before != now and name != "kind" and not is_size:
            raise _other(f"{name.replace('_', ' ')}: {now}, and another text says {before}", place)
        if name != "kind" or before is None or len(str(now)) > len(str(before)):
            changed[name] = now  # SLURM says h100 where nvidia-smi says NVIDIA H100 80GB HBM3
    return replace(one, **changed)


def _topology(text: str) -> Machine | None:
    """The matrix of `nvidia-smi topo -m`: a row and a column for every GPU, and for network cards. Raises `EOFError`
    for a part of one."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    head = next((words for words in lines if _GPU.fullmatch(words[0]) and "X" not in words), None)
    if head is None:
        return None
    names = [word for word in head if _GPU.fullmatch(word) or _NIC.fullmatch(word)]
    gpus = [name for name in names if _GPU.fullmatch(name)]
    rows = {words[0]: words[1 : len(names) + 1] for words in lines if words[0] in gpus and "X" in words}
    if sorted(rows) != sorted(gpus):
        raise EOFError(f"the matrix has columns of {len(gpus)} GPUs and rows of {len(rows)}")
    if torn := next((name for name, row in rows.items() if len(row) < len(names)), None):
        raise EOFError(f"the row of {torn} has {len(rows[torn])} of {len(names)} columns")
    columns = [place for place, name in enumerate(names) if name in gpus]
    links = {rows[name][place] for name in gpus for place in columns if rows[name][place] != "X"}
    cards = [place for place, name in enumerate(names) if name not in gpus]
    near = [place for place in cards if any(rows[name][place] in _ONE_SWITCH for name in gpus)]
    legend = {match[1]: match[2] for match in _CALLED.finditer(text)}
    called = [legend.get(names[place], names[place]) for place in near]
    ways = [[rows[name][place] for place in columns] for name in gpus]
    machine = Machine(
        devices=len(gpus), links=tuple(sorted(links)), joined=_joined_by_nvlink(ways), nics=len(cards) or None
    )
    if not 0 < len(near) < len(cards):
        return machine
    known = () if any(name.startswith("NIC") for name in called) else tuple(called)
    return replace(machine, near_nics=len(near), near_names=known)


def _joined_by_nvlink(ways: list[list[str]]) -> int | None:
    """The size of the groups of consecutive GPUs that NVLink joins, each pair by as many links, if all have the same
    size and PCIe is between them. `ways`: a row for each GPU, in the order of their numbers."""
    count = len(ways)
    beside = [way for way in ways[0] if _NVLINKS.fullmatch(way)] if ways else []
    size = 1 + len(beside)
    if not 1 < size < count or count % size:
        return None
    for one, row in enumerate(ways):
        for other, way in enumerate(row):
            if one != other and (way != beside[0] if one // size == other // size else way not in PCIE):
                return None
    return size


def _hwloc(text: str) -> Machine | None:
    """The topology that `lstopo --of xml` writes. Raises `EOFError` for a part of one."""
    if not is_hwloc(text):
        return None
    if "</topology>" not in text:
        raise EOFError("</topology>")
    try:
        kind, devices, memory_mib = gpus_of(text)
    except ValueError as several:
        raise _several(f"GPUs of several kinds, {several}") from None
    return Machine(kind=kind, devices=devices or None, memory_mib=memory_mib, nics=cards_of(text) or None)


def _several(said: str) -> ShardplanError:
    return ShardplanError(error("mixed-devices", f"{said}: a profile has one"))


def _query(text: str) -> Machine | None:
    """`nvidia-smi --query-gpu=name,memory.total --format=csv`, columns in any order, with or without `noheader`; with a
    head, `pcie.link.gen.max` and `pcie.link.width.max` too."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") >= 1]
    sized = [row for row in rows if any(re.fullmatch(r"\d+ MiB", cell) for cell in row)]
    if not sized:
        return None
    memory = {int(cell.split()[0]) for row in sized for cell in row if re.fullmatch(r"\d{4,18} MiB", cell)}
    head = next((row for row in rows if "name" in row), None)
    words = [at for at, cell in enumerate(sized[0]) if re.search("[A-Za-z]{2}", cell) and "MiB" not in cell]
    place = head.index("name") if head else next(iter(words), 0)
    kinds = {row[place] for row in sized if len(row) > place and "MiB" not in row[place]}
    if len(kinds) > 1 or not memory:
        raise _several(f"GPUs of several kinds, {', '.join(sorted(kinds))}") if len(kinds) > 1 else _no_memory()
    kind, pcie_gbps = next(iter(kinds), None), _pcie_gbps(head, sized)
    return Machine(kind=kind, devices=len(sized), memory_mib=min(memory), pcie_gbps=pcie_gbps)


def _pcie_gbps(head: list[str] | None, rows: list[list[str]]) -> int | None:
    """What the slowest PCIe link carries in one direction: lanes times the rate of its generation."""
    names = ("pcie.link.gen.max", "pcie.link.width.max")
    if head is None or not set(names) <= set(head):
        return None
    found = [tuple(row[head.index(name)] for name in names) for row in rows if len(row) == len(head)]
    rates = [
        _PCIE_LANE[gen] * of for gen, lanes in found if gen in _PCIE_LANE and (of := whole_number(lanes)) is not None
    ]
    return int(min(rates)) if rates and len(rates) == len(rows) else None


def _no_memory() -> ShardplanError:
    return ShardplanError(error("unread-capture", "the table of GPUs has no memory.total"))


def _slurm(text: str) -> Machine | None:
    """`scontrol show node`: a paragraph per node; `slurm.conf` has one line for `node[01-16]`. Nodes without GPUs do
    not count where others have some."""
    nodes = {match[1]: text[match.start() :].split("NodeName=", 2)[1] for match in _NODE.finditer(text)}
    if not nodes:
        return None
    names = [name for name, said in nodes.items() if _GRES.search(said)] or list(nodes)
    gres = list(_GRES.finditer(text))
    counts = {int(match[2]) for match in gres}
    kinds = {match[1] for match in gres if match[1]}
    if len(counts) > 1 or len(kinds) > 1:
        said = ", ".join(sorted({f"{match[1] or 'gpu'}:{match[2]}" for match in gres}))
        hint = "give the nodes of one partition"
        raise ShardplanError(error("mixed-devices", f"nodes of several kinds: {said}", hint=hint))
    machines = sum(len(host_names(name, "NodeName")) for name in names)
    return Machine(kind=next(iter(kinds), None), devices=next(iter(counts), None), machines=machines)


def _rates(text: str) -> Machine | None:
    """`400 Gb/sec (4X NDR)` per card, as the kernel says it, or `Rate: 400` of ibstat; before it the state of the port,
    if that is known."""
    is_ib = "Gb/sec" in text or "CA '" in text
    rates, down, state = list[int](), 0, "active"
    for line in text.splitlines() if is_ib else ():
        if said := _STATE.match(line):
            state = said[1].lower()
        elif rate := _RATE.match(line):
            rates += [int(rate[1])] if state == "active" else []
            down += state != "active"
            state = "active"
    return Machine(nic_gbit=tuple(sorted(rates)), down_nics=down or None) if rates or down else None
