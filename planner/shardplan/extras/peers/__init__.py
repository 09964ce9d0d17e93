"""Cost models of other planners (Alpa, Slapo, Hidet, TensorRT-LLM), so that their published results can be compared."""
