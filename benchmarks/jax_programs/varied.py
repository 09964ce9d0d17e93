"""Programs of further kinds: choices, loops, graphs, gradients inside, convolutions of channels, policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jax_programs.program import Program, entropy, ids, kernel, normal


def choices() -> Program:
    """Branches by data: a `cond` of the whole batch, a `switch` among layers of a list in a scan over numbers."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = jax.nn.relu(x @ params["in"])
        h = jax.lax.cond(jnp.mean(h) > 0.1, lambda z: z @ params["one"], lambda z: jnp.tanh(z @ params["two"]), h)
        branches = [lambda z, w=w: jax.nn.gelu(z @ w) for w in params["layers"]]
        h = jax.lax.switch(jnp.argmax(jnp.sum(jnp.abs(y), 0)) % 3, branches, h)
        return jnp.mean(jnp.square(h @ params["out"] - y))

    params = {
        "in": kernel(16, 64),
        "one": kernel(64, 64),
        "two": kernel(64, 64),
        "layers": [kernel(64, 64) for _ in range(3)],
        "out": kernel(64, 8),
    }
    return Program(loss, params, (normal(32, 16), normal(32, 8)), ("in=[null, gpu]", "{one,two}=[gpu, null]"))


def fixed_point() -> Program:
    """A fixed point by `while_loop`, its derivative by the implicit function theorem, in another `while_loop`."""

    def cell(params: Any, x: Any, z: Any) -> Any:
        return jnp.tanh(z @ params["inner"] + x @ params["inject"])

    def solve(step: Callable[[Any], Any], start: Any) -> Any:
        def goes_on(state: Any) -> Any:
            before, now, turns = state
            return (jnp.max(jnp.abs(before - now)) > 1e-7) & (turns < 60)

        return jax.lax.while_loop(goes_on, lambda s: (s[1], step(s[1]), s[2] + 1), (start, step(start), 0))[1]

    @jax.custom_vjp
    def equilibrium(params: Any, x: Any) -> Any:
        return solve(lambda z: cell(params, x, z), jnp.zeros((x.shape[0], 32)))

    def forward(params: Any, x: Any) -> Any:
        z = equilibrium(params, x)
        return z, (params, x, z)

    def backward(kept: Any, g: Any) -> Any:
        params, x, z = kept
        _, of_state = jax.vjp(lambda z: cell(params, x, z), z)
        u = solve(lambda u: of_state(u)[0] + g, g)
        _, of_rest = jax.vjp(lambda p, x: cell(p, x, z), params, x)
        return of_rest(u)

    equilibrium.defvjp(forward, backward)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean(jnp.square(equilibrium(params["cell"], x) @ params["out"] - y))

    params = {"cell": {"inner": kernel(32, 32) * 0.3, "inject": kernel(8, 32)}, "out": kernel(32, 8)}
    return Program(loss, params, (normal(32, 8), normal(32, 8)), ("cell.inject=[null, gpu]",))


class Graphs(NamedTuple):
    """Nodes, edges and what is wanted."""

    nodes: Any
    senders: Any
    receivers: Any
    goal: Any


def messages() -> Program:
    """A net over a graph: attention over edges by segments (sums, maxima), degrees, a pool by graph."""

    def loss(params: Any, graph: Graphs) -> Any:
        count = graph.nodes.shape[0]
        h = graph.nodes @ params["in"]
        for layer in params["layers"]:
            sent, got = h[graph.senders], h[graph.receivers]
            score = jax.nn.leaky_relu(jnp.concatenate([sent, got], -1) @ layer["score"])[:, 0]
            top = jax.ops.segment_max(score, graph.receivers, count)
            raw = jnp.exp(score - top[graph.receivers])
            share = raw / (jax.ops.segment_sum(raw, graph.receivers, count)[graph.receivers] + 1e-9)
            h = jax.nn.relu(
                jax.ops.segment_sum(share[:, None] * (sent @ layer["send"]), graph.receivers, count) + h @ layer["own"]
            )
        pooled = jax.ops.segment_sum(h, jnp.arange(count) // 8, count // 8) / 8
        return jnp.mean(jnp.square(pooled @ params["out"] - graph.goal))

    layers = [{"score": kernel(64, 1), "send": kernel(32, 32), "own": kernel(32, 32)} for _ in range(2)]
    batch = Graphs(normal(32, 8), ids(96, below=32), ids(96, below=32), normal(4, 4))
    return Program(loss, {"in": kernel(8, 32), "layers": layers, "out": kernel(32, 4)}, (batch,), ("in=[null, gpu]",))


def conv_next() -> Program:
    """Depthwise convolutions, norms of channels, scaled paths, strided patches: gradients of grouped convolutions."""

    def norm(p: Any, x: Any) -> Any:
        return p["scale"] * jax.nn.standardize(x, -1, epsilon=1e-6) + p["bias"]

    def conv(x: Any, w: Any, stride: int, groups: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            "SAME" if stride == 1 else "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    def loss(params: Any, x: Any, labels: Any) -> Any:
        x = norm(params["norm"], conv(x, params["stem"], 4))
        for p in params["blocks"]:
            h = norm(p["norm"], conv(x, p["depth"], 1, x.shape[-1]))
            h = jax.nn.gelu(h @ p["up"])
            size = jnp.sqrt(jnp.sum(jnp.square(h), (1, 2), keepdims=True) + 1e-6)
            h = h + p["gamma"] * h * size / (jnp.mean(size, -1, keepdims=True) + 1e-6)
            x = x + p["scale"] * (h @ p["down"])
        return entropy(x.mean((1, 2)) @ params["head"], labels)

    def pair() -> Any:
        return {"scale": jnp.ones(16), "bias": jnp.zeros(16)}

    blocks = [
        {
            "norm": pair(),
            "depth": normal(3, 3, 1, 16, scale=0.3),
            "up": kernel(16, 64),
            "gamma": normal(64, scale=0.1),
            "scale": jnp.full(16, 0.5),
            "down": kernel(64, 16),
        }
        for _ in range(2)
    ]
    params = {"norm": pair(), "stem": normal(4, 4, 3, 16, scale=0.15), "blocks": blocks, "head": kernel(16, 8)}
    return Program(
        loss,
        params,
        (normal(16, 16, 16, 3), ids(16, below=8)),
        ("blocks.*.up=[null, gpu]", "blocks.*.down=[gpu, null]"),
    )


def penalties() -> Program:
    """Gradients inside of a loss: a critic's penalty, gradients of every sample clipped, a Hessian's product."""

    def critic(params: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(jax.nn.softplus(x @ params["one"]) @ params["two"]) @ params["out"], -1)

    def loss(params: Any, real: Any, fake: Any) -> Any:
        slopes = jax.vmap(jax.grad(lambda x: critic(params, x)))(0.5 * (real + fake))
        penalty = jnp.mean(jnp.square(jnp.sqrt(jnp.sum(jnp.square(slopes), -1) + 1e-9) - 1))
        each = jax.vmap(jax.grad(lambda p, x: jnp.square(critic(p, x))), (None, 0))(
            {"out": params["out"], **jax.lax.stop_gradient({"one": params["one"], "two": params["two"]})}, real
        )
        size = jnp.sqrt(
            sum(jnp.sum(jnp.square(leaf.reshape(leaf.shape[0], -1)), -1) for leaf in jax.tree.leaves(each)) + 1e-9
        )
        _, along = jax.jvp(jax.grad(lambda x: jnp.sum(critic(params, x))), (fake,), (real,))
        return (
            jnp.mean(critic(params, fake) - critic(params, real))
            + 10 * penalty
            + 0.1 * jnp.mean(jnp.minimum(size, 1.0))
            + 0.01 * jnp.mean(jnp.square(along))
        )

    params = {"one": kernel(16, 64), "two": kernel(64, 32), "out": kernel(32, 1)}
    return Program(loss, params, (normal(32, 16), normal(32, 16)), ("one=[null, gpu]", "two=[gpu, null]"))


def policies() -> Program:
    """Blocks under policies of named values, a mixture: what is saved by name, what has no batch, everything."""

    def block(p: Any, x: Any) -> Any:
        h = checkpoint_name(jax.nn.silu(x @ p["up"]), "hidden")
        return x + checkpoint_name(h @ p["down"], "residual")

    rules = (
        jax.checkpoint_policies.save_only_these_names("hidden"),
        jax.checkpoint_policies.save_any_names_but_these("residual"),
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_from_both_policies(
            jax.checkpoint_policies.save_only_these_names("hidden"), jax.checkpoint_policies.dots_saveable
        ),
    )

    def loss(params: Any, x: Any, y: Any) -> Any:
        for p, policy in zip(params["blocks"], rules, strict=True):
            x = jax.checkpoint(block, policy=policy)(p, x)
        return jnp.mean(jnp.square(x - y))

    blocks = [{"up": kernel(32, 128), "down": kernel(128, 32)} for _ in rules]
    return Program(
        loss,
        {"blocks": blocks},
        (normal(32, 32), normal(32, 32)),
        ("blocks.*.up=[null, gpu]", "blocks.*.down=[gpu, null]"),
    )


PROGRAMS: dict[str, Callable[[], Program]] = {
    f"varied {each.__name__}": each for each in (choices, fixed_point, messages, conv_next, penalties, policies)
}
