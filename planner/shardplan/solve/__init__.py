"""`Problem` -> `Solution` with a bound. Knows no tensors and no devices."""
