"""Calibration of a cluster profile from measurements: logs of collective benchmarks, tables of matrix products.

`nccl_log` reads, `fit` fits, `collectives` and `products` turn fits into the keys of a profile, `text` writes it.
`traces` reads profiles of runs (`kineto`, `nsys`), of which `traced` makes factors.
"""
