"""Plans carried out by JAX on simulated devices. Run as a program, because the number of devices is fixed when jax
starts: `python jax_cases.py CASES FOLDER` reads a JSON list of cases and prints a JSON list of what came of each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=16")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("PJRT_NPROC", "256")  # threads: see docs/jax.md
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import jax
import numpy as np
from forced_plans import cluster_of, forced_plan
from onnx import reference
from onnx_in_jax import function_of, inputs_of, unfolded
from tiny_models import Sizes, Tiny, megatron, tiny_gpt, tiny_llama, tiny_moe

import shardplan
from shardplan.constraints.parse import parse_constraints
from shardplan.extras.xla.check import Check, check_text
from shardplan.model.types import Model
from shardplan.plan.types import Plan
from shardplan.planning import PlanOptions, plan_model

GROUPED = Sizes(layers=1, heads=8, kv_heads=4)
MODELS = {
    "gpt": tiny_gpt,
    "gpt fused": lambda: tiny_gpt(fused=True),
    "llama": lambda: tiny_llama(GROUPED),
    "llama tied": lambda: tiny_llama(GROUPED, tied=True),
    "moe": lambda: tiny_moe(replace(GROUPED, ffn=64)),
}
"""What XLA sends between two layers is seen in the first two, and takes it long to compile."""


def plan_of(tiny: Tiny, model: Model, mesh: str, kind: str) -> Plan:
    """A plan by name: Megatron's, a recipe's, a random one (`random 3`), or the solver's own for a device with a given
    share of the memory that the fastest plan takes (`solved 0.3`)."""
    word, _, number = kind.partition(" ")
    if word == "Megatron":
        text = megatron(tiny, sequence=bool(number))
        return plan_model(
            model, cluster_of(mesh), PlanOptions(constraints=parse_constraints(text, "megatron.yaml"), effort="quick")
        )
    if word == "solved":
        most = forced_plan(model, mesh).summary.memory.total
        return forced_plan(model, mesh, limit_bytes=round(most * float(number)), runtime="jax")
    return forced_plan(model, mesh, seed=int(number)) if word == "random" else forced_plan(model, mesh, recipe=kind)


@cache
def whole(name: str, folder: Path):
    """Model and values of everything on one device: output, and how far it is from the one of onnx's reference
    implementation."""
    tiny = MODELS[name]()
    model = tiny.model(folder)
    inputs = inputs_of(tiny, model)
    expected = reference.ReferenceEvaluator(tiny.proto).run(None, dict(tiny.inputs))[0]
    out = jax.jit(function_of(model))(tiny.weights, inputs)
    return tiny, model, inputs, out, float(abs(np.asarray(out) - expected).max())


@cache
def gradients_of_whole(name: str, folder: Path):
    """A gradient of the output, and those of the weights that it leads to on one device."""
    tiny, model, inputs, out, _ = whole(name, folder)
    cotangent = np.random.default_rng(3).standard_normal(out.shape).astype(np.float32)
    return cotangent, jax.jit(pulled(function_of(model)))(tiny.weights, inputs, cotangent)[1]


def pulled(run):
    """`run` with its gradients: (weights, inputs, gradient of the output) -> (output, gradients of the weights)."""

    def both(weights, inputs, cotangent):
        out, pull = jax.vjp(lambda w: run(w, inputs), weights)
        return out, pull(cotangent)[0]

    return both


def backward_sent(check: Check) -> tuple[list[str], list[str]]:
    """Every collective of the backward pass, as emitted and as planned."""

    def told(rows: Iterable) -> list[str]:
        texts = (f"{row.kind} {','.join(row.axes)} {row.payload_bytes}" for row in rows for _ in range(row.count))
        return sorted(texts)

    emitted, predicted = ([row for row in rows if row.phase == "backward"] for rows in (check.emitted, check.predicted))
    return told(emitted), told(predicted)


def outcome(case: dict[str, object], folder: Path) -> dict[str, object]:
    """Run one case: {"model", "mesh", "plan", "gradients"}."""
    tiny, model, inputs, out, reference_error = whole(case["model"], folder)
    plan = plan_of(tiny, model, case["mesh"], case["plan"])
    mesh = shardplan.jax.mesh(plan, devices=jax.devices()[: plan.mesh.size])
    weights = unfolded(plan, tiny.weights)
    places = shardplan.jax.shardings(plan, mesh, weights)
    given = {name: jax.device_put(x, shardplan.jax.sharding(plan, mesh, name)) for name, x in inputs.items()}
    args = (jax.device_put(weights, places), given)
    run = function_of(model, plan, mesh)
    grads: dict[str, object] = {}
    if case["gradients"]:
        cotangent, grads = gradients_of_whole(case["model"], folder)
        run = jax.jit(pulled(run), out_shardings=(None, places))
        args = (*args, jax.device_put(cotangent, shardplan.jax.sharding(plan, mesh, model.outputs[0])))
    compiled = jax.jit(run).lower(*args).compile()
    check = check_text(compiled.as_text(), plan)
    got = compiled(*args)
    got_out, got_grads = got if case["gradients"] else (got, {})
    emitted, planned = backward_sent(check)
    largest = max((float(abs(np.asarray(grad)).max()) for grad in grads.values()), default=1.0)
    errors = [
        float(abs(np.asarray(g).reshape(grads[n].shape) - np.asarray(grads[n])).max()) for n, g in got_grads.items()
    ]
    return {
        **case,
        "agrees": check.agrees,
        "emitted_bytes": check.emitted_bytes("forward"),
        "planned_bytes": check.predicted_bytes("forward"),
        "backward_ratio": check.ratio("backward"),
        "backward_emitted": emitted,
        "backward_planned": planned,
        "scattered": check.scattered,
        "folded": check.folded,
        "text": str(check),
        "value_error": float(abs(np.asarray(got_out) - np.asarray(out)).max()),
        "gradient_error": max(errors, default=0.0) / largest,
        "reference_error": reference_error,
    }


if __name__ == "__main__":
    print(json.dumps([outcome(case, Path(sys.argv[2])) for case in json.loads(sys.argv[1])]))
