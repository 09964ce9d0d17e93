"""Train steps in JAX under plans made from their own functions, on 8 simulated devices: values, gradients, bytes.

    python benchmarks/jax_steps.py
    python benchmarks/jax_steps.py nnx 'plain scanned_gqa'
    python benchmarks/jax_steps.py --six

Each program of jax_programs/ is planned by `shardplan.jax.plan` for 2x4: as fast as can be (`fastest`), in half of
that plan's memory or the least more that there is a plan for (`tight`), and with its weights split in the manner of
Megatron (`tensor`). A step of AdamW, its arguments donated, is run as planned and on one device. `loss`, `gradient`,
`weights`: the largest difference (of gradients, to the largest one of the leaf). `forward`, `backward`: bytes in XLA's
HLO, and those over the plan's; `same`: by every collective and its axes.
Exits with 1 where a value is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "benchmarks")]
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("PJRT_NPROC", "128")  # threads: see docs/jax.md
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax  # noqa: E402 - the number of devices is said before
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import shardplan  # noqa: E402
from shardplan.cluster.mesh import make_cluster  # noqa: E402
from shardplan.cluster.profile import load_profile  # noqa: E402
from shardplan.errors import InfeasibleError  # noqa: E402
from shardplan.jax.planning.plan import inputs_of  # noqa: E402

SIX = (
    "plain scanned_gqa", "plain unrolled_gqa", "linen scanned_gpt", "nnx scanned_gpt", "nnx vit", "equinox scanned_gpt",
)  # fmt: skip
KINDS = ("fastest", "tight", "tensor")
TIGHT = (0.5, 0.7, 0.85, 1.0)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def programs():
    found = {}
    for name in ("plain", "varied", "further", "spectral", "linen_programs", "nnx_programs", "equinox_programs"):
        try:
            found |= __import__(f"jax_programs.{name}", fromlist=["PROGRAMS"]).PROGRAMS
        except ImportError as missing:
            print(f"{name}: {missing}")
    return found


@functools.cache
def slow_devices():
    """The generic cluster with devices so slow, and links so quick to begin, that models this small are worth
    splitting."""
    cluster = make_cluster(load_profile("generic"), "2x4")
    device = replace(cluster.device, peak_flops=dict.fromkeys(cluster.device.peak_flops, 2e11))
    levels = tuple(replace(level, base_s=1e-7) for level in cluster.levels)
    return replace(cluster, device=device, levels=levels)


def planned(program, kind):
    asked = {name: each for name, each in program.settings.items() if name not in ("tolerance", "widened")}
    asked["cluster"], asked["target"] = slow_devices(), "jax"
    if kind == "tight":
        free = shardplan.jax.plan(program.loss, program.params, *program.batch, **asked)
        for share in TIGHT:
            asked["memory_limit"] = int(free.summary.memory.total * share)
            with contextlib.suppress(InfeasibleError):
                return shardplan.jax.plan(program.loss, program.params, *program.batch, **asked)
    if kind == "tensor":
        rows = [
            f"{name}=[machine{', null' * (leaf.ndim - 1)}]"
            for name, leaf in inputs_of(program.loss, program.batch).items()
            if leaf.ndim
        ]
        asked["pins"] = [*program.pins, *rows]
    return shardplan.jax.plan(program.loss, program.params, *program.batch, **asked)


def step(loss, params, state, *batch):
    value, gradients = jax.value_and_grad(loss, allow_int=True)(params, *batch)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value, gradients


def off(ours, theirs, relative=False):
    """The largest difference of leaves; `relative`: to the largest entry of the leaf, or to a thousandth of that of
    all (a gradient that is zero but for rounding)."""
    least = 1e-3 * max(float(np.abs(np.asarray(leaf, np.float64)).max(initial=0)) for leaf in jax.tree.leaves(theirs))
    most = 0.0
    for pair in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        one, other = (np.asarray(leaf, np.float64) for leaf in pair)
        scale = max(np.abs(other).max(initial=0), least) if relative else 1.0
        most = max(most, float(np.abs(one - other).max(initial=0)) / scale)
    return most


def outcome(program, kind):
    plan = planned(program, kind)
    mesh = shardplan.jax.mesh(plan)
    params, batch = program.params, program.batch
    of_params = shardplan.jax.shardings(plan, mesh, params)
    of_state = shardplan.jax.state_shardings(plan, mesh, jax.eval_shape(OPTIMIZER.init, params))
    of_batch = shardplan.jax.batch_shardings(plan, mesh, program.loss, *batch)
    loss = shardplan.jax.parallelize(program.loss, plan, mesh)
    train = jax.jit(
        lambda *given: step(loss, *given), donate_argnums=(0, 1),
        in_shardings=(of_params, of_state, *of_batch), out_shardings=(of_params, of_state, None, of_params),
    )  # fmt: skip
    wanted = jax.jit(lambda *given: step(program.loss, *given))(params, OPTIMIZER.init(params), *batch)
    placed = jax.device_put(batch, of_batch)
    graded = jax.jit(jax.value_and_grad(loss), out_shardings=(None, of_params))
    arguments = (jax.device_put(params, of_params), *placed)
    checked = shardplan.jax.check(graded, arguments, plan, widened=program.settings.get("widened"))
    copy = jax.tree.map(jnp.array, params)
    given = jax.device_put(copy, of_params), jax.device_put(OPTIMIZER.init(params), of_state)
    got = train(*given, *placed)
    return checked, (off(got[2], wanted[2]), off(got[3], wanted[3], relative=True), off(got[0], wanted[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs, or libraries")
    parser.add_argument("--six", action="store_true", help="the six of the page")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--loud", action="store_true", help="tracebacks, and what XLA sent")
    asked = parser.parse_args()
    names = list(SIX) if asked.six else asked.names
    print(f"jax {jax.__version__}, 8 simulated devices as 2x4")
    print(
        f"{'program':22} {'plan':8} {'loss':>7} {'gradient':>8} {'weights':>7} "
        f"{'forward':>9} {'ratio':>6} {'same':>4} {'backward':>9} {'ratio':>6} {'s':>4}"
    )
    wrong = 0
    for name, make in programs().items():
        if names and name not in names and name.split()[0] not in names:
            continue
        for kind in asked.kind or KINDS:
            started = time.perf_counter()
            try:
                program = make()
                checked, errors = outcome(program, kind)
            except Exception as problem:  # noqa: BLE001 - a line of the table
                wrong += 1
                if asked.loud:
                    traceback.print_exc()
                print(
                    f"{name:22} {kind:8} {type(problem).__name__}: {' / '.join(str(problem).splitlines()[:2])[:300]}",
                    flush=True,
                )
                continue
            tolerance = program.settings.get("tolerance", 1e-3)
            bad = errors[1] > tolerance or not np.isfinite(errors[1])
            wrong += bad
            print(
                f"{name:22} {kind:8} {errors[0]:7.0e} {errors[1]:8.0e} {errors[2]:7.0e} "
                f"{checked.emitted_bytes('forward'):9,.0f} {checked.ratio('forward'):6.2f} "
                f"{'yes' if checked.agrees else 'no':>4} "
                f"{checked.emitted_bytes('backward'):9,.0f} {checked.ratio('backward'):6.2f} "
                f"{time.perf_counter() - started:4.0f}{'  WRONG' if bad else ''}",
                flush=True,
            )
            if asked.loud:
                print(checked)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
