"""Plans on graphs: an exported program is rewritten to local tensors with the moves of the plan as nodes."""
