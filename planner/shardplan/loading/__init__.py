"""Weights where they are used: read the part of a checkpoint that a rank holds, split a checkpoint once for all ranks,
and the steps by which loaders of other systems shard while they load.

`open_checkpoint` opens safetensors without reading any; `load_rank` gives a rank its parameters; `split` writes one
file per rank; `shard_info` is TVM's and MLC's description of steps.
"""
