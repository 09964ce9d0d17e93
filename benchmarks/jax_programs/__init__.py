"""Train steps in JAX as people write them, by library: plain functions, flax linen, flax nnx, equinox."""
