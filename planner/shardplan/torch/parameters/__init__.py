"""Parameters of a model under a plan: their names, DTensors, fused weights, and checkpoints."""
