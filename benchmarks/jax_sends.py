"""What XLA would send for a committed plan at full size: the model's forward pass compiled for simulated devices.

    python benchmarks/jax_sends.py tests/models/llama3_8b.onnx plans/llama3_8b.4x8.plan.json

Nothing is run and no weight exists: shapes are enough. Minutes, most of them XLA's.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]


def main(model_path: str, plan_path: str) -> None:
    import shardplan

    plan = shardplan.load(plan_path)
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={plan.mesh.size}"
    os.environ["JAX_PLATFORMS"] = "cpu"

    import jax
    import jax.numpy as jnp
    from onnx_in_jax import function_of

    from shardplan.model.read import read_model
    from shardplan.plan.orientation import checkpoint_shape

    dtypes = {"float": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16, "bool": jnp.bool_}
    model, mesh = read_model(model_path), shardplan.jax.mesh(plan)
    planned = {tensor.name for tensor in plan.tensors}

    def abstract(name: str, shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        place = shardplan.jax.sharding(plan, mesh, name) if name in planned else None
        return jax.ShapeDtypeStruct(shape, dtypes.get(dtype, jnp.int32), sharding=place)

    weights = {
        t.checkpoint: abstract(t.name, checkpoint_shape(t.shape, t.perm), t.dtype)
        for t in plan.tensors
        if t.role == "parameter"
    }
    outside = [t for t in model.tensors.values() if t.role in ("input", "constant") and t.name not in model.constants]
    inputs = {t.name: abstract(t.name, t.shape, t.dtype) for t in outside}
    started = time.perf_counter()
    print(shardplan.jax.check(function_of(model, plan, mesh), (weights, inputs), plan))
    seconds = time.perf_counter() - started
    print(f"{len(model.operators):,} operators compiled for {plan.mesh.size} devices in {seconds:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("plan")
    main(**{f"{name}_path": path for name, path in vars(parser.parse_args()).items()})
