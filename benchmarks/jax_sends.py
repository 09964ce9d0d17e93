"""What XLA would send for a committed plan at full size: the model's forward pass compiled for simulated devices.

    python benchmarks/jax_sends.py tests/models/llama3_8b.onnx plans/llama3_8b.4x8.plan.json
    python benchmarks/jax_sends.py --gpu tests/models/llama3_8b.onnx plans/llama3_8b.4x8.plan.json

Nothing is run and no weight exists: shapes are enough. `--gpu` compiles for H100s as XLA does where there are some,
with its passes that rewrite collectives; it needs no GPU, but `pip install jax-cuda12-plugin jax-cuda12-pjrt
nvidia-cuda-nvcc-cu12` in versions that fit jax.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "planner"), str(ROOT / "tests" / "support")]

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 l2_cache_size: 52428800
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 device_memory_size: 84978434048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""XLA's `GpuTargetConfigProto` of the chip; numbers from NVIDIA's H100 SXM data sheet."""


def prepare(devices: int) -> None:
    """Set what XLA reads when jax starts."""
    import importlib.util

    found = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.cuda_nvcc")
    folder = next(iter(found.submodule_search_locations or ()), "") if found else ""
    # without a device nothing can be tried out: no kernel is timed, products of matrices go to cuBLAS
    gpu = f"--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_gpu_cuda_data_dir={folder}"
    simulated = f"--xla_force_host_platform_device_count={devices}"
    os.environ["XLA_FLAGS"] = f"{simulated} {gpu}" if folder else simulated
    os.environ["PATH"] += f"{os.pathsep}{folder}/bin"
    os.environ["JAX_PLATFORMS"] = "cpu"


def h100s(number: int) -> Sequence[Any]:
    """Devices that only a compiler sees."""
    from jax.experimental import topologies

    found = topologies.get_topology_desc(
        platform="cuda", topology_name="h100", target_config=H100, topology=f"1x{number}x1"
    )
    return list(found.devices)


def main(model_path: str, plan_path: str, *, gpu: bool) -> None:
    import shardplan

    plan = shardplan.load(plan_path)
    prepare(plan.mesh.size)

    import jax
    import jax.numpy as jnp
    from onnx_in_jax import function_of

    from shardplan.model.read import read_model
    from shardplan.plan.orientation import checkpoint_shape

    dtypes = {"float": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16, "bool": jnp.bool_}
    model = read_model(model_path)
    mesh = shardplan.jax.mesh(plan, devices=h100s(plan.mesh.size) if gpu else None)
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
    parser.add_argument("--gpu", action="store_true", help="compile for H100s")
    given = parser.parse_args()
    main(given.model, given.plan, gpu=given.gpu)
