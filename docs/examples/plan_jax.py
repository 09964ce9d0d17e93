"""Plan a train step of a grouped-query transformer from its own JAX function, and run it as planned.

    python docs/examples/plan_jax.py --mesh 2x4

Without accelerators the devices are simulated on the CPU. The plan gives the shardings of weights, optimizer state and
batch, and XLA follows them. A model this small is fastest whole on every device, so heads and the MLP are told to be
split, and sequences over the machines; --free lets the planner choose.
"""

import argparse
import functools
import math
import os

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("--mesh", default="2x4")
PARSER.add_argument("--steps", type=int, default=5)
PARSER.add_argument("--free", action="store_true", help="fix nothing")
ARGS = PARSER.parse_args()
DEVICES = math.prod(int(size) for size in ARGS.mesh.split("x"))
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={DEVICES}")
os.environ.setdefault("PJRT_NPROC", str(16 * DEVICES))  # threads: simulated devices hold some while they wait

import jax
import jax.numpy as jnp
import optax

import shardplan

LAYERS, HIDDEN, HEADS, GROUPS, WIDTH, VOCAB, BATCH, SEQ = 4, 128, 8, 4, 16, 512, 16, 64


def normalised(scale, x):
    return scale * x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def layer(p, x):
    h = normalised(p["attention_norm"], x)
    q, k, v = (jnp.einsum("bsh,hnd->bsnd", h, p[name]) for name in ("q", "k", "v"))
    k, v = (jnp.repeat(each, HEADS // GROUPS, 2) for each in (k, v))
    scores = jnp.einsum("bqnd,bknd->bnqk", q, k) / WIDTH**0.5
    seen = jnp.arange(SEQ)[:, None] >= jnp.arange(SEQ)
    shares = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    x = x + jnp.einsum("bnqk,bknd,ndh->bqh", shares, v, p["o"])
    h = normalised(p["mlp_norm"], x)
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def loss_of(params, batch):
    x = params["embedding"][batch["ids"]]
    x, _ = jax.lax.scan(lambda x, p: (jax.checkpoint(layer)(p, x), None), x, params["layers"])
    logits = normalised(params["norm"], x) @ params["head"]
    shares = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(shares, batch["targets"][..., None], -1))


def drawn(key):
    """The parameters; layers are stacked."""
    shapes = {
        "q": (HIDDEN, HEADS, WIDTH), "k": (HIDDEN, GROUPS, WIDTH), "v": (HIDDEN, GROUPS, WIDTH),
        "o": (HEADS, WIDTH, HIDDEN), "gate": (HIDDEN, 4 * HIDDEN), "up": (HIDDEN, 4 * HIDDEN), "down": (4 * HIDDEN, HIDDEN),
    }  # fmt: skip
    keys = jax.random.split(key, len(shapes) + 2)
    layers = {
        name: jax.random.normal(each, (LAYERS, *shape)) / HIDDEN**0.5
        for each, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    layers |= {name: jnp.ones((LAYERS, HIDDEN)) for name in ("attention_norm", "mlp_norm")}
    table = jax.random.normal(keys[-1], (VOCAB, HIDDEN)) / HIDDEN**0.5
    head = jax.random.normal(keys[-2], (HIDDEN, VOCAB)) / HIDDEN**0.5
    return {"embedding": table, "layers": layers, "norm": jnp.ones(HIDDEN), "head": head}


FIXED = {
    "inputs": {"ids": ["machine"], "targets": ["machine"]},
    "parameters": {
        "layers.[qkv]": [None, None, "gpu"],
        "layers.o": [None, "gpu"],
        "layers.{gate,up}": [None, None, "gpu"],
        "layers.down": [None, "gpu"],
    },
}
optimizer = optax.adamw(1e-2)


def step(loss_fn, params, state, batch):
    loss, gradients = jax.value_and_grad(loss_fn)(params, batch)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def main():
    ids = jax.random.randint(jax.random.key(1), (BATCH, SEQ + 1), 0, VOCAB)
    batch = {"ids": ids[:, :-1], "targets": ids[:, 1:]}
    shapes = jax.eval_shape(drawn, jax.random.key(0))  # planning needs no values
    plan = shardplan.jax.plan(loss_of, shapes, batch, mesh=ARGS.mesh, constraints=[] if ARGS.free else [FIXED])
    print(f"planned: a step of {plan.summary.step_ns / 1e3:.0f} us on {ARGS.mesh}")

    mesh = shardplan.jax.mesh(plan)
    of_params = shardplan.jax.shardings(plan, mesh, shapes)
    of_state = shardplan.jax.state_shardings(plan, mesh, jax.eval_shape(optimizer.init, shapes))
    of_batch = {name: shardplan.jax.sharding(plan, mesh, name) for name in batch}
    planned_loss = shardplan.jax.parallelize(loss_of, plan, mesh)
    planned_step = functools.partial(step, planned_loss)
    train = jax.jit(
        planned_step, in_shardings=(of_params, of_state, of_batch), out_shardings=(of_params, of_state, None)
    )

    params = jax.jit(drawn, out_shardings=of_params)(jax.random.key(0))
    state = jax.jit(optimizer.init, out_shardings=of_state)(params)
    alone_params, alone_state = drawn(jax.random.key(0)), optimizer.init(drawn(jax.random.key(0)))
    alone_step = jax.jit(functools.partial(step, loss_of))
    for number in range(ARGS.steps):
        params, state, loss = train(params, state, jax.device_put(batch, of_batch))
        alone_params, alone_state, alone = alone_step(alone_params, alone_state, batch)
        print(f"step {number} loss {loss:.4f}, on one device {alone:.4f}")
    up = params["layers"]["up"]
    print(f"layers.up {up.shape} is {up.sharding.spec}: a device holds {up.addressable_shards[0].data.shape}")
    print(shardplan.jax.check(jax.grad(planned_loss), (params, jax.device_put(batch, of_batch)), plan))


if __name__ == "__main__":
    main()
