"""From the description of a machine to a profile that extends a shipped one; reports what is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardplan.cluster.build import Profile
from shardplan.cluster.profile import list_profiles, load_profile
from shardplan.errors import Diagnostic, ShardplanError, error, warning
from shardplan.extras.detect.captures import PCIE, Machine

_NVLINK_GBPS = 25
"""Of one NVLink in one direction, since NVLink 2 (V100); NVLink 5 (Blackwell) has twice as much."""
_BLACKWELL = ("B200", "B300")
_NEAR = 0.08
"""Share by which the memory that a driver shows may differ from what a device is sold with (81,559 MiB for 80 GB)."""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Detected:
    """`text`: the profile in YAML; `base`: the shipped profile that it extends; `unknown`: what nothing said."""

    text: str
    base: str
    unknown: tuple[Diagnostic, ...]


def detected(machine: Machine, name: str) -> Detected:
    """The profile of `machine`. Raises `ShardplanError` (`unknown-device`) for a device that no shipped profile has."""
    base = _base(machine)
    inner, outer = base.levels[0].name, base.levels[-1].name
    per_machine = machine.devices
    unknown = tuple(_unknown(machine, base))
    lines = [
        f"# {machine.kind}: what this machine says of itself; the rest is that of {base.name}.",
        *(f"# not known: {each.summary}" for each in unknown),
        f"name: {name}",
        f"extends: builtin:{base.name}",
        "provenance:",
        "  status: estimated",
        "  sources: [shardplan profiles detect]",
    ]
    if per_machine is not None:
        groups = _joined(machine, base)
        lines += ["mesh:", "  axes:", f"    - {{name: machine, size: {machine.machines or 1}, level: {outer}}}"]
        lines += [f"    - {{name: group, size: {per_machine // groups}, level: pcie}}"] if groups else []
        lines += [f"    - {{name: gpu, size: {groups or per_machine}, level: {inner}}}"]
    lines += _levels(machine, base, inner, outer)
    if machine.near_names:  # `=`: these names and none that begin like them
        lines += ["environment:", f'  NCCL_IB_HCA: "={",".join(machine.near_names)}"']
    return Detected("\n".join(lines) + "\n", base.name, unknown)


def _levels(machine: Machine, base: Profile, inner: str, outer: str) -> list[str]:
    groups = _joined(machine, base)
    inside, between = [], []
    if machine.nvlinks is not None and (groups or machine.joined is None):
        inside += _nvlink(machine.nvlinks, groups or machine.devices or 0, base)
    if machine.nic_gbit:
        between += [f"node_gbit: {sum(machine.used_gbit)}", f"nics: {len(machine.used_gbit)}"]
    if groups:  # the order counts: links between groups are between those inside and the network
        middle = ["topology: pcie", f"link_gbps: {machine.pcie_gbps}"]
        found = [(inner, inside), ("pcie", middle), (outer, between)]
        return ["levels:", *(f"  {level}: {{{', '.join(each)}}}" for level, each in found)]
    found = [(inner, inside), (outer, between)]
    keys = [f"  {level}: {{{', '.join(each)}}}" for level, each in found if each and (level != inner or inner != outer)]
    return ["levels:", *keys] if keys else []


def _nvlink(links: int, devices: int, base: Profile) -> list[str]:
    """The keys of the innermost level. Where the links of a device are enough to reach each other one directly, there
    is no switch: a pair has only its own."""
    per_link = _per_link(base)
    if devices > 2 and links * (devices - 1) * per_link * 1e9 <= base.levels[0].link_bytes_per_s:
        link_gbps = links * (devices - 1) * per_link
        nvls = ["nvls: false"] if base.levels[0].nvls else []
        return ["topology: full_mesh", f"pair_gbps: {links * per_link}", f"link_gbps: {link_gbps}", *nvls]
    return [f"link_gbps: {links * per_link}"]


def _joined(machine: Machine, base: Profile) -> int | None:
    """The devices that NVLink joins, where PCIe joins such groups and it is known how fast."""
    return machine.joined if machine.pcie_gbps is not None and len(base.levels) == 2 else None


def _per_link(base: Profile) -> int:
    return 2 * _NVLINK_GBPS if any(chip in base.device.kind for chip in _BLACKWELL) else _NVLINK_GBPS


def _base(machine: Machine) -> Profile:
    """The shipped profile with this device and memory."""
    if machine.kind is None:
        hint = "give what nvidia-smi --query-gpu=name,memory.total --format=csv prints"
        raise ShardplanError(error("unknown-device", "nothing says what the devices are", hint=hint))
    words = _words(machine.kind)
    shipped = [load_profile(name) for name in list_profiles()]
    alike = [profile for profile in shipped if words and _words(profile.device.kind or "")[:1] == words[:1]]
    if machine.memory_mib is not None:
        stated = machine.memory_mib * _MIB
        alike = [each for each in alike if abs(stated / each.device.memory_bytes - 1.0) < _NEAR]
    if not alike:
        memory = "" if machine.memory_mib is None else f" with {machine.memory_mib:,} MiB"
        known = ", ".join(sorted({profile.device.kind for profile in shipped if profile.device.kind}))
        summary = f"no shipped profile has the device '{machine.kind}'{memory}"
        hint = f"write a profile (docs/cluster-profiles.md); there are profiles of {known}"
        raise ShardplanError(error("unknown-device", summary, hint=hint))
    return alike[0]


def _words(kind: str) -> list[str]:
    """`NVIDIA H100 80GB HBM3` -> `["h100", ...]`: the name of the chip first."""
    parts = re.split(r"[\s_-]+", kind.lower())
    return [part for part in parts if re.fullmatch(r"[a-z]{1,3}\d{1,3}[a-z]?", part)]


def _unknown(machine: Machine, base: Profile) -> Iterator[Diagnostic]:
    """What the texts did not say."""
    if machine.devices is None:
        yield _not_detected("how many devices a machine has", "nvidia-smi topo -m says it")
    if machine.machines is None:
        yield _not_detected("how many machines there are", "scontrol show node says it, or --machines N")
    if machine.memory_mib is None:
        yield _not_detected(
            "how much memory a device has", "nvidia-smi --query-gpu=name,memory.total --format=csv says it"
        )
    if machine.near_nics and machine.nics:
        far = f"what {machine.nics - machine.near_nics} of {machine.nics} network cards are for: none is beside a GPU"
        yield _not_detected(f"{far}, and they are left out", "environment: NCCL_IB_HCA says which are used")
    if "pcie" in (machine.kind or "").lower() and "sxm" in base.device.kind.lower():
        yield _not_detected(f"how fast a PCIe card is: {base.name} has {base.device.kind}", "shardplan calibrate gemm")
    if not machine.nic_gbit:
        yield _not_detected(f"how fast the network is: that of {base.name} is kept", "ibstat says it")
    yield from _unknown_links(machine, base)


def _unknown_links(machine: Machine, base: Profile) -> Iterator[Diagnostic]:
    if not machine.links and (machine.devices or 0) > 1:
        yield _not_detected(f"what joins the devices: the links of {base.name} are kept", "nvidia-smi topo -m says it")
    elif machine.links and _joined(machine, base):
        yield _not_detected(f"how much of {machine.pcie_gbps} GB/s PCIe reaches", "shardplan calibrate nccl")
    elif machine.links and (machine.nvlinks is None or machine.joined):
        kinds = ", ".join(machine.links)
        way = "PCIe" if set(machine.links) <= PCIE else "not all pairs alike"
        hint = "shardplan calibrate nccl"
        if machine.joined:
            hint = "nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max --format=csv says it"
        yield _not_detected(f"how fast {kinds} are ({way}): the links of {base.name} are kept", hint)


def _not_detected(summary: str, hint: str) -> Diagnostic:
    return warning("not-detected", summary, hint=hint)
