"""What XLA sends in both passes of tiny models, per byte of the plan: compiled for CPU, and with `--gpu` for H100s.

    python benchmarks/jax_backward.py --gpu

The table of docs/jax.md. Plans are for 4 x 4 devices; nothing is run. `--gpu` needs what `jax_sends.py --gpu` needs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from jax_sends import h100s, prepare

CASES = [
    ("gpt fused", "Megatron"),
    ("gpt fused", "Megatron sequence"),
    ("gpt fused", "solved 0.25"),
    ("gpt", "Megatron"),
    ("gpt", "Megatron sequence"),
    ("llama", "Megatron"),
    ("llama tied", "Megatron sequence"),
    ("llama", "ZeRO-3"),
    ("moe", "Megatron"),
]


def main(targets: list[str]) -> None:
    import jax
    import numpy as np
    from jax_cases import MODELS, plan_of, pulled
    from onnx_in_jax import function_of, inputs_of, unfolded

    import shardplan

    print(f"{'model':12} {'plan':20}" + "".join(f" {f'{t} fwd':>9} {f'{t} bwd':>9}" for t in targets))
    devices = {"CPU": jax.devices(), "GPU": h100s(16) if "GPU" in targets else []}
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in CASES:
            tiny = MODELS[name]()
            model = tiny.model(Path(folder))
            plan = plan_of(tiny, model, "4x4", kind)
            ratios = []
            for target in targets:
                mesh = shardplan.jax.mesh(plan, devices=devices[target])
                weights = unfolded(plan, tiny.weights)
                places = shardplan.jax.shardings(plan, mesh, weights)
                run = jax.jit(pulled(function_of(model, plan, mesh)), out_shardings=(None, places))

                def abstract(x, name, plan=plan, mesh=mesh):
                    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=shardplan.jax.sharding(plan, mesh, name))

                given = {n: abstract(x, n) for n, x in inputs_of(tiny, model).items()}
                shapes = {n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=places[n]) for n, x in weights.items()}
                out = model.outputs[0]
                cotangent = abstract(np.zeros(model.tensors[out].shape, np.float32), out)
                check = shardplan.jax.check(run, (shapes, given, cotangent), plan)
                ratios += [check.ratio("forward"), check.ratio("backward")]
            print(f"{name:12} {kind:20}" + "".join(f" {ratio:9.3f}" for ratio in ratios))


if __name__ == "__main__":
    prepare(16)
    main(["CPU", "GPU"] if "--gpu" in sys.argv else ["CPU"])
