"""The scheduled step of a plan: moves in buckets, phases as programs, their simulation, and memory over time."""
