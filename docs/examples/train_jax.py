"""Train a small GPT in JAX as a plan says: the layers stacked and scanned, every weight and activation where it belongs.

    shardplan solve transformer:style=gpt,layers=4,hidden=256,heads=8,vocab=256,seq=32,batch=16,dtype=float \
        --mesh 4x4 --constraints docs/examples/tensor_parallel.yaml -o gpt.plan.json
    python docs/examples/train_jax.py gpt.plan.json --heads 8

Without accelerators the devices are simulated on the CPU. With --checkpoint the weights come from a safetensors file
(or a folder of them), of which every device reads its part alone.
"""

import argparse
import functools
import os

import shardplan

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("plan")
PARSER.add_argument("--heads", type=int, default=8)
PARSER.add_argument("--checkpoint")
PARSER.add_argument("--steps", type=int, default=10)
ARGS = PARSER.parse_args()
PLAN = shardplan.load(ARGS.plan)  # loads no jax, so the devices can still be made up
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={PLAN.mesh.size}")
os.environ.setdefault("PJRT_NPROC", str(16 * PLAN.mesh.size))  # threads: simulated devices hold some while they wait

import jax
import jax.numpy as jnp

MESH = shardplan.jax.mesh(PLAN)
NAMES = {  # leaves of the pytree below -> what the checkpoint calls them; * is the layer: such leaves stack all layers
    "wte": "transformer.wte.weight",
    "wpe": "transformer.wpe.weight",
    "ln_f.scale": "transformer.ln_f.weight",
    "ln_f.bias": "transformer.ln_f.bias",
    "layers.ln_1.scale": "transformer.h.*.ln_1.weight",
    "layers.ln_1.bias": "transformer.h.*.ln_1.bias",
    "layers.qkv.kernel": "transformer.h.*.attn.c_attn.weight",
    "layers.qkv.bias": "transformer.h.*.attn.c_attn.bias",
    "layers.out.kernel": "transformer.h.*.attn.c_proj.weight",
    "layers.out.bias": "transformer.h.*.attn.c_proj.bias",
    "layers.ln_2.scale": "transformer.h.*.ln_2.weight",
    "layers.ln_2.bias": "transformer.h.*.ln_2.bias",
    "layers.up.kernel": "transformer.h.*.mlp.c_fc.weight",
    "layers.up.bias": "transformer.h.*.mlp.c_fc.bias",
    "layers.down.kernel": "transformer.h.*.mlp.c_proj.weight",
    "layers.down.bias": "transformer.h.*.mlp.c_proj.bias",
}


def parameter_shapes(layers, hidden, heads, vocab, seq):
    """The pytree of parameters. The fused q, k, v has dims of its own for the three and for the heads, so that JAX can
    shard the heads of each, which is what the plan's segments `S(1;3x128)` mean."""

    def leaf(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    width = hidden // heads
    norm = {"scale": leaf(layers, hidden), "bias": leaf(layers, hidden)}
    return {
        "wte": leaf(vocab, hidden),
        "wpe": leaf(seq, hidden),
        "ln_f": {"scale": leaf(hidden), "bias": leaf(hidden)},
        "layers": {
            "ln_1": norm,
            "qkv": {"kernel": leaf(layers, hidden, 3, heads, width), "bias": leaf(layers, 3, heads, width)},
            "out": {"kernel": leaf(layers, heads, width, hidden), "bias": leaf(layers, hidden)},
            "ln_2": norm,
            "up": {"kernel": leaf(layers, hidden, 4 * hidden), "bias": leaf(layers, 4 * hidden)},
            "down": {"kernel": leaf(layers, 4 * hidden, hidden), "bias": leaf(layers, hidden)},
        },
    }


def forward(pin, params, ids):
    """Token ids [batch, seq] -> logits [batch, seq, vocab]. `pin(name, x)` puts `x` where the plan has that value; names
    are those of the plan, a module's name means what it returns."""
    wte = pin("transformer.wte.weight", params["wte"])
    x = pin("transformer.wpe", wte[ids] + params["wpe"])
    x, _ = jax.lax.scan(functools.partial(layer, pin), x, params["layers"])
    x = pin("transformer.ln_f", layer_norm(x, params["ln_f"]))
    return pin("lm_head", x @ wte.T)


def layer(pin, x, w):
    """One layer; it is the same for all of them, so its pins speak of `h.*`. Weights that the plan stores in pieces
    are gathered here, one layer at a time."""
    w = shardplan.jax.constrain_tree(PLAN, MESH, {"layers": w}, names=NAMES)["layers"]
    h = pin("transformer.h.*.ln_1", layer_norm(x, w["ln_1"]))
    qkv = jnp.einsum("bsh,hpnw->bspnw", h, w["qkv"]["kernel"]) + w["qkv"]["bias"]
    qkv = pin("transformer.h.*.attn.c_attn.Add", qkv)
    h = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
    h = pin("transformer.h.*.attn.c_proj.MatMul", jnp.einsum("bsnw,nwh->bsh", h, w["out"]["kernel"]))
    x = pin("transformer.h.*.Add", x + h + w["out"]["bias"])
    h = pin("transformer.h.*.ln_2", layer_norm(x, w["ln_2"]))
    h = pin("transformer.h.*.mlp.c_fc", h @ w["up"]["kernel"] + w["up"]["bias"])
    h = pin("transformer.h.*.mlp.c_proj.MatMul", jax.nn.gelu(h) @ w["down"]["kernel"])
    return pin("transformer.h.*.Add_2", x + h + w["down"]["bias"]), None


def layer_norm(x, w):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w["scale"] + w["bias"]


def loss_of(run, params, ids):
    """Cross entropy of the next token."""
    logits = jax.nn.log_softmax(run(params, ids)[:, :-1])
    return -jnp.take_along_axis(logits, ids[:, 1:, None], axis=-1).mean()


def adam(run, rate, state, ids):
    """One step of Adam; the moments lie where their weights do."""
    params, mean, square, step = state
    loss, grads = jax.value_and_grad(functools.partial(loss_of, run))(params, ids)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, grads)
    scale = rate * jnp.sqrt(1 - 0.99 ** (step + 1)) / (1 - 0.9 ** (step + 1))
    params = jax.tree.map(lambda p, m, s: p - scale * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return (params, mean, square, step + 1), loss


def initial(shapes, places):
    """Random weights, each made where it belongs."""
    leaves, structure = jax.tree.flatten(shapes)
    keys = jax.tree.unflatten(structure, list(jax.random.split(jax.random.key(0), len(leaves))))

    def draw():
        params = jax.tree.map(lambda key, leaf: 0.05 * jax.random.normal(key, leaf.shape, leaf.dtype), keys, shapes)
        for norm in (params["ln_f"], params["layers"]["ln_1"], params["layers"]["ln_2"]):
            norm["scale"] += 1
        return params

    return jax.jit(draw, out_shardings=places)()


def main():
    tensors = {tensor.checkpoint or tensor.name: tensor for tensor in PLAN.tensors}
    layers = sum(name.endswith(".ln_1.weight") for name in tensors)
    (vocab, hidden), (batch, seq) = tensors["transformer.wte.weight"].shape, tensors["input_ids"].shape
    shapes = parameter_shapes(layers, hidden, ARGS.heads, vocab, seq)

    places = shardplan.jax.shardings(PLAN, MESH, shapes, names=NAMES)
    if ARGS.checkpoint:
        params = shardplan.jax.load(PLAN, MESH, shapes, ARGS.checkpoint, names=NAMES)
    else:
        params = initial(shapes, places)
    counting = jnp.arange(seq) * (1 + jnp.arange(batch)[:, None]) % vocab  # 0, k, 2k ...: easy to learn
    ids = jax.device_put(counting, shardplan.jax.sharding(PLAN, MESH, "input_ids"))

    run = functools.partial(forward, functools.partial(shardplan.jax.constrain, PLAN, MESH))
    print(f"{PLAN.model['name']} on {PLAN.mesh}: a forward pass as planned and as XLA compiled it")
    print(shardplan.jax.check(run, (params, ids), PLAN))

    stay = ((places, places, places, None), None)
    step = jax.jit(functools.partial(adam, run, 1e-3), donate_argnums=0, out_shardings=stay)
    started = jax.device_put(jnp.int32(0), jax.NamedSharding(MESH, jax.P()))  # as it comes back, or jax compiles twice
    state = (params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), started)
    for number in range(ARGS.steps):
        state, loss = step(state, ids)
        print(f"step {number} loss {loss:.4f}")
    kernel = state[0]["layers"]["up"]["kernel"]
    held = kernel.sharding.shard_shape(kernel.shape)
    print(f"layers.up.kernel {kernel.shape} is {kernel.sharding.spec}: a device holds {held}")


if __name__ == "__main__":
    main()
