"""One of two processes that carry out a plan together: `python jax_process.py RANK ADDRESS FOLDER`.

Loads tiny Llama from the checkpoint in FOLDER, runs it, checks what XLA sends, and leaves what it found and its part of
the result in files of its own: gloo prints whenever it likes, and long lines fill pipes while the other waits.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from jax_flags import simulated

os.environ["XLA_FLAGS"] = simulated(8)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from onnx_in_jax import function_of, inputs_of
from tiny_models import tiny_llama

import shardplan
from shardplan.jax import checkpoint_loading

RANK, ADDRESS, FOLDER = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])


def main() -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(ADDRESS, num_processes=2, process_id=RANK)
    tiny = tiny_llama()
    model = tiny.model(FOLDER / str(RANK))
    plan = shardplan.load(FOLDER / "plan.json")
    mesh = shardplan.jax.mesh(plan)
    read, take = [], np.ascontiguousarray
    checkpoint_loading.np.ascontiguousarray = lambda part: read.append(part.size) or take(part)
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in tiny.weights.items()}
    weights = shardplan.jax.load(plan, mesh, shapes, FOLDER / "model.safetensors")
    checkpoint_loading.np.ascontiguousarray = take
    given = {}
    for name, whole in inputs_of(tiny, model).items():
        place = shardplan.jax.sharding(plan, mesh, name)
        given[name] = jax.make_array_from_callback(whole.shape, place, lambda index, whole=whole: whole[index])
    run = function_of(model, plan, mesh)
    check = shardplan.jax.check(run, (weights, given), plan)
    out = jax.jit(run)(weights, given)
    np.save(FOLDER / str(RANK) / "out.npy", out.addressable_shards[0].data)
    (FOLDER / str(RANK) / "found.json").write_text(
        json.dumps(
            {
                "devices": [[device.process_index for device in row] for row in mesh.devices.tolist()],
                "read": sum(read),
                "of": sum(array.size for array in tiny.weights.values()),
                "agrees": check.agrees,
                "text": str(check),
            }
        )
    )


main()
