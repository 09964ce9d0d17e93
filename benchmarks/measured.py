"""Collectives and matrix products of the shipped profiles beside measured ones: tables of `fidelity.py`.

The measurements in `measured/` are a cut of those that NVIDIA publishes with aiconfigurator; see the note there. Large
collectives between machines, and what single large products reach, are quoted from the sources in the rows.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rows import Row, at_least, at_most, not_demanded, within

from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile, profile_from_text
from shardplan.cluster.types import Cluster, Curve
from shardplan.cost.collectives import CollectiveModel
from shardplan.cost.compute import ComputeModel
from shardplan.extras.calibration.collectives import wire_factor
from shardplan.extras.calibration.fit import fit_curve
from shardplan.graph.options import PlanOptions
from shardplan.models import NAMED, build
from shardplan.planning import plan_model
from shardplan.study.sensitivity import regret

_FOLDER = Path(__file__).parent / "measured"
MIB, GIB = 2**20, 2**30
_BF16 = 2


@dataclass(frozen=True)
class Sweep:
    """One collective on devices of one machine, by size: `size` in bytes as in `Collective.share`, `seconds`."""

    profile: str
    kind: str
    devices: int
    size: np.ndarray
    seconds: np.ndarray

    @property
    def case(self) -> str:
        return f"{self.profile}: {self.kind} on {self.devices}"

    def predicted(self) -> np.ndarray:
        """Ours, with the profile as it is shipped."""
        cluster = make_cluster(load_profile(self.profile), str(self.devices))
        return CollectiveModel(cluster).seconds_array(self.kind, (0,), self.size)


@functools.cache
def sweeps() -> tuple[Sweep, ...]:
    """All measured collectives."""
    with (_FOLDER / "collectives.csv").open() as file:
        head, *rows = csv.reader(file)
    size = np.array([float(text) for text in head[3:]])
    return tuple(
        Sweep(profile, kind, int(devices), size, 1e-6 * np.array([float(text) for text in times]))
        for profile, kind, devices, *times in rows
    )


@functools.cache
def products() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By profile: sizes m, n, k of measured bf16 products, shape (3, count), and their seconds."""
    with (_FOLDER / "products.csv").open() as file:
        head, *rows = csv.reader(file)
    found: dict[str, list[tuple[float, ...]]] = {}
    for profile, m, n, *times in rows:
        for k, time in zip(head[3:], times, strict=True):
            found.setdefault(profile, []).append((float(m), float(n), float(k), 1e-6 * float(time)))
    return {profile: (np.array(rows).T[:3], np.array(rows).T[3]) for profile, rows in found.items()}


def sweep_errors() -> Iterator[Row]:
    """Measured seconds of collectives in one machine over ours, mean from 16 MiB up (NCCL, 2, 4 and 8 devices)."""
    for sweep in sweeps():
        big = sweep.size >= 16 * MIB
        ours = float(np.mean(sweep.predicted()[big] / sweep.seconds[big]))
        yield within(sweep.case, ours, 1.0, 0.20)


def latencies() -> Iterator[Row]:
    """Microseconds of the smallest messages (512 bytes; the first in the table) in one machine."""
    for sweep in sweeps():
        if sweep.kind in ("all_gather", "all_reduce"):
            yield within(sweep.case, 1e6 * float(sweep.predicted()[0]), 1e6 * float(sweep.seconds[0]), 0.20)


def sweep_fits() -> Iterator[Row]:
    """How well `calibrate nccl` fits a + b S + c sqrt(S) to each of them: mean relative error from 1 MiB up, %."""
    errors = []
    for sweep in sweeps():
        a, b, c = fit_curve(list(zip(sweep.size, sweep.seconds, strict=True)))
        big = sweep.size >= MIB
        fitted = a + b * sweep.size + c * np.sqrt(sweep.size)
        errors.append(100 * float(np.mean(np.abs(fitted / sweep.seconds - 1)[big])))
        wide = sweep.profile == "b200-dgx" and sweep.devices > 2
        yield at_most(sweep.case, errors[-1], 15 if wide else 10)
    yield at_most("mean of all", float(np.mean(errors)), 6.3)


def between_machines() -> Iterator[Row]:
    """Bus bandwidth of large collectives, GB/s (stas00/ml-engineering, coreweave/nccl-tests, issues of NVIDIA/nccl and
    NVIDIA/nccl-tests, meta-pytorch/autoparallel)."""
    rows = [  # case, profile, mesh, collective, axes of the group, bytes, GB/s, demand
        ("H100, 1 of 8 in each of 8", "h100-dgx", "8x8", "all_gather", (0,), 16 * GIB, 48, 0.10),
        ("H100, 2 of 8 in each of 8", "h100-dgx", "8x4x2", "all_gather", (0, 2), 16 * GIB, 96, 0.10),
        ("H100, 4 of 8 in each of 8", "h100-dgx", "8x2x4", "all_gather", (0, 2), 16 * GIB, 192, 0.10),
        ("H100, all of 8 in each of 8", "h100-dgx", "8x8", "all_gather", (0, 1), 16 * GIB, 334, 0.10),
        ("H100, 4 machines", "h100-dgx", "4x8", "all_reduce", (0, 1), 8 * GIB, 366, 0.15),
        ("H100, 8 machines, SHARP switches", "h100-dgx", "8x8", "all_reduce", (0, 1), 8 * GIB, 387, 0.15),
        ("H100, 2 machines", "h100-dgx", "2x8", "all_reduce", (0, 1), 8 * GIB, 470, 0.15),
        ("B200, 4 machines, 16 GiB", "b200-dgx", "4x8", "all_reduce", (0, 1), 16 * GIB, 382, 0.15),
        ("B200, 4 machines, 4 GiB", "b200-dgx", "4x8", "all_reduce", (0, 1), 4 * GIB, 377, 0.15),
        ("B200, 4 machines, 256 MiB", "b200-dgx", "4x8", "all_reduce", (0, 1), 256 * MIB, 229, 0.15),
        ("B200, 4 machines, 16 MiB", "b200-dgx", "4x8", "all_reduce", (0, 1), 16 * MIB, 64, 0.30),
        ("GB200, 1 rack of 72", "gb200-nvl72", "18x4", "all_reduce", (0, 1), 8 * GIB, 835, 0.15),
        ("GB200, 2 racks of 72", "gb200-nvl72", "2x18x4", "all_reduce", (0, 1, 2), 8 * GIB, 793, 0.15),
        ("GB200, 20 racks of 72", "gb200-nvl72", "20x18x4", "all_reduce", (0, 1, 2), 16 * GIB, 405, 0.15),
        ("A100, 2 machines, 4 cards each", "a100-p4d", "2x8", "all_reduce", (0, 1), GIB, 91, 0.15),
        ("p4d, 1 machine", "a100-p4d", "1x8", "all_reduce", (1,), GIB, 231, 0.15),
        ("p4d, 2 machines", "a100-p4d", "2x8", "all_reduce", (0, 1), GIB, 57, 0.20),
        ("p4d, 3 machines", "a100-p4d", "3x8", "all_reduce", (0, 1), GIB, 32, 0.20),
        ("p4d, 4 machines", "a100-p4d", "4x8", "all_reduce", (0, 1), GIB, 30, 0.20),
        ("A100, 1 machine", "a100-dgx", "8", "all_reduce", (0,), 16 * GIB, 235, 0.10),
        ("H200, 1 machine", "h200-dgx", "8", "all_reduce", (0,), 16 * GIB, 482, 0.10),
        ("H200, 1 machine", "h200-dgx", "8", "all_gather", (0,), 16 * GIB, 361, 0.10),
        ("H200, 1 machine", "h200-dgx", "8", "reduce_scatter", (0,), 16 * GIB, 363, 0.10),
        ("B200, 1 machine", "b200-dgx", "8", "all_reduce", (0,), 16 * GIB, 846, 0.10),
        ("MI300X, 2", "mi300x-8", "2", "all_reduce", (0,), 4 * GIB, 47.7, 0.10),
        ("MI300X, 8", "mi300x-8", "8", "all_reduce", (0,), 4 * GIB, 312.9, 0.10),
    ]
    for case, profile, mesh, kind, axes, payload, wanted, share in rows:
        cluster = make_cluster(_CARDS.get(case) or load_profile(profile), mesh)
        seconds = CollectiveModel(cluster).seconds(kind, axes, payload)
        ours = wire_factor(kind, cluster.mesh.ways(axes)) * payload / seconds / 1e9
        row = within(f"{case}: {kind}", ours, wanted, share)
        yield not_demanded(row, _MISSES[case]) if case in _MISSES else row


_MISSES = {
    "H100, 2 machines": "in-switch trees halve the traffic of two machines",
    "GB200, 20 racks of 72": "the profile has no `scale_loss`",
    "B200, 4 machines, 16 MiB": "EFA ramps more slowly than the cards of the fit",
    "B200, 4 machines, 256 MiB": "EFA ramps more slowly than the cards of the fit",
    "p4d, 3 machines": "software of 2021, reported as a fault",
    "p4d, 4 machines": "software of 2021, reported as a fault",
}
_CARDS = {
    "A100, 2 machines, 4 cards each": profile_from_text(
        "schema: 1\nextends: builtin:a100-dgx\nlevels: {net: {node_gbit: 800, nics: 4}}\n", "hgx.yaml"
    )
}


def exchanges() -> Iterator[Row]:
    """All-to-all between machines of 8 H100s: bus bandwidth over that of a network card; cards are not pooled
    (NVIDIA/nccl-tests 130 and 267: N/(N-1) of the card on N machines)."""
    for machines in (2, 4, 8):
        cluster = make_cluster(load_profile("h100-dgx"), f"{machines}x8")
        payload = 8.0 * GIB
        ranks = 8 * machines
        bus = (ranks - 1) / ranks * payload / CollectiveModel(cluster).seconds("all_to_all", (0, 1), payload)
        card = 50e9
        whole = (ranks - 1) / ranks * machines / (machines - 1)
        yield not_demanded(within(f"{machines} machines", bus / card, whole, 0.20), "what cards could do at best")


def product_errors() -> Iterator[Row]:
    """Matrix products in bf16 of 1024 rows and more: mean absolute error, %, and rank correlation, x 100."""
    for profile, (sizes, seconds) in products().items():
        ours = predicted_products(make_cluster(load_profile(profile)), sizes)
        yield at_most(f"{profile}: error", 100 * float(np.mean(np.abs(ours / seconds - 1))), 15)
        ranks = [np.argsort(np.argsort(values)) for values in (ours, seconds)]
        yield at_least(f"{profile}: rank correlation", 100 * float(np.corrcoef(*ranks)[0, 1]), 98)


def largest_products() -> Iterator[Row]:
    """TFLOP/s of the best single bf16 product (stas00/ml-engineering, MAMF finder; ours: 16384 cubed)."""
    rows = [("a100-dgx", 271), ("h100-dgx", 794), ("h200-dgx", 794), ("b200-dgx", 1745), ("gb200-nvl72", 1822),
            ("mi300x-8", 668)]  # fmt: skip
    for profile, wanted in rows:
        side = 16384.0
        seconds = predicted_products(make_cluster(load_profile(profile)), np.full((3, 1), side))
        yield within(profile, 2 * side**3 / float(seconds[0]) / 1e12, wanted, 0.15)


def predicted_products(cluster: Cluster, sizes: np.ndarray) -> np.ndarray:
    """Seconds of single products, measured alone: without what a long step loses."""
    m, n, k = sizes
    gemm = replace(cluster.device.gemm, sustained=1.0)
    model = ComputeModel(replace(cluster, device=replace(cluster.device, gemm=gemm)))
    moved = _BF16 * (m * k + k * n + m * n)
    return model.seconds("gemm", "bfloat16", 2 * m * n * k, moved, m, n, k)


def measured_cluster(profile: str, mesh: str) -> Cluster:
    """The cluster with measured curves for the groups of two, four and eight devices of a machine."""
    curves = tuple(
        Curve(sweep.kind, 1, sweep.devices, tuple(zip(sweep.size.tolist(), sweep.seconds.tolist(), strict=True)))
        for sweep in sweeps()
        if sweep.profile == profile
    )
    return replace(make_cluster(load_profile(profile), mesh), curves=curves)


def regrets(profiles: Sequence[str] = ("a100-dgx", "h100-dgx", "h200-dgx", "b200-dgx")) -> Iterator[Row]:
    """Step of the plan chosen with the formula over that of the best plan, both at measured prices inside machines."""
    options = PlanOptions()
    for profile in profiles:
        for name, mesh in (("gpt-1.7b", "4x4"), ("llama3-8b", "4x4"), ("llama3-8b", "8")):
            model = build(replace(NAMED[name], layers=2, batch=16, seq=2048))
            plan = plan_model(model, make_cluster(load_profile(profile), mesh), options)
            ratio = 1 + regret(model, measured_cluster(profile, mesh), options, plan)
            yield at_most(f"{profile} {mesh}: {name}, 2 layers", ratio, 1.10)
