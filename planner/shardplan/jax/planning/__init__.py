"""From a JAX function to a plan: its jaxpr as an ONNX graph that plans can be made of."""
