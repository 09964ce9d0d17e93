"""From a JAX function to a plan: its jaxpr as an ONNX graph that the planner can read."""
