"""The table of sharding rules, by the name of a function, method or operator of ATen, and their application."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from shardplan.torch.propagation.engine import Engine, Op, Rule
from shardplan.torch.rules import (
    attention,
    channel_norms,
    complex_numbers,
    convolution,
    dropout,
    elementwise,
    fallback,
    gradients,
    indexing,
    lookups,
    losses,
    matrices,
    moments,
    norms,
    numbers,
    products,
    recurrent,
    reductions,
    searches,
    slicing,
    views,
    windows,
)
from shardplan.torch.rules.function_names import is_pointwise, name_of

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(elementwise.ELEMENTWISE, elementwise.elementwise),
    "where": indexing.where,
    "grad": gradients.gradients,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax"), norms.normalised),
    **dict.fromkeys(("layer_norm", "rms_norm"), norms.layer_norm),
    "_weight_norm_interface": norms.weight_norm,
    "batch_norm": channel_norms.batch_norm,
    "_native_batch_norm_legit_functional": channel_norms.batch_norm_of_graphs,
    "group_norm": channel_norms.group_norm,
    "instance_norm": channel_norms.instance_norm,
    **dict.fromkeys(windows.POOLS, windows.pool),
    **dict.fromkeys(windows.SAMPLINGS, windows.sampling),
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), windows.grid),
    **dict.fromkeys(("pad", "constant_pad_nd"), windows.pad),
    "view_as_complex": complex_numbers.of_pairs,
    "view_as_real": complex_numbers.in_pairs,
    **dict.fromkeys(complex_numbers.FOURIER, complex_numbers.transform),
    "stack": slicing.stack,
    "glu": slicing.glu,
    **dict.fromkeys(("to", "type_as"), elementwise.cast),
    "copy": elementwise.copied,
    "requires_grad": elementwise.requires_grad,
    **dict.fromkeys(losses.DISTANCES, losses.distance),
    **dict.fromkeys(("binary_cross_entropy", "binary_cross_entropy_with_logits"), losses.binary_cross_entropy),
    "broadcast_tensors": views.broadcast,
    "cross_entropy_loss": losses.cross_entropy,
    "nll_loss_nd": losses.nll_loss,
    **dict.fromkeys(("dropout", "feature_dropout"), dropout.dropout),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "any", "all",
         "logsumexp", "nansum"),
        reductions.reduction,
    ),
    **dict.fromkeys(
        ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "topk", "sort", "argsort"), reductions.along_dim
    ),
    **dict.fromkeys(reductions.RANKED, reductions.ranked),
    **dict.fromkeys(("searchsorted", "bucketize"), searches.searched),
    "cdist": moments.distances,
    **dict.fromkeys(("norm", "linalg_vector_norm"), moments.norm),
    **dict.fromkeys(moments.VARIANCES, moments.variance),
    **dict.fromkeys(("tril", "triu"), reductions.triangle),
    **dict.fromkeys(("im2col", "col2im"), windows.per_sample),
    "unfold": windows.unfold,
    **dict.fromkeys(("flip", "roll"), reductions.shifted),
    "one_hot": reductions.one_hot,
    **dict.fromkeys(views.RESHAPES, views.reshape),
    **dict.fromkeys(views.PERMUTATIONS, views.permute),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), views.expand),
    "repeat": views.repeat,
    "diag_embed": views.diag_embed,
    "repeat_interleave": views.repeat_interleave,
    **dict.fromkeys(("split", "chunk", "split_with_sizes", "tensor_split", "unbind", *slicing.UNSAFE), slicing.split),
    **dict.fromkeys(("narrow", "select", "slice"), slicing.narrow),
    **dict.fromkeys(("diagonal", "linalg_diagonal"), slicing.diagonal),
    "getitem": indexing.getitem,
    "setitem": indexing.setitem,
    **dict.fromkeys(("slice_scatter", "select_scatter"), indexing.part_set),
    "index": indexing.index,
    **dict.fromkeys(("index_put", "_unsafe_index_put", "_index_put_impl"), lookups.index_put),
    "index_select": indexing.index_select,
    **dict.fromkeys(("gather", "take_along_dim"), indexing.gather),
    **dict.fromkeys(indexing.SCATTERS, indexing.scatter),
    **dict.fromkeys(indexing.INDEXED, indexing.indexed),
    **dict.fromkeys(indexing.MADE_NEW, indexing.made_new),
    "contains": numbers.contains,
    "equal": numbers.are_equal,
    "_is_all_true": lambda engine, op: reductions.reduction(engine, Op("all", torch.all, op.args)),
    "_is_any_true": lambda engine, op: reductions.reduction(engine, Op("any", torch.any, op.args)),
    "item": numbers.item,
    **dict.fromkeys(("is_same_size", "_has_same_storage_numel"), numbers.alike),
    **dict.fromkeys(("cat", "concat", "concatenate"), slicing.cat),
    "linear": products.linear,
    **dict.fromkeys(("addmm", "baddbmm"), products.addmm),
    **dict.fromkeys((*convolution.CONVOLUTIONS, *convolution.TRANSPOSED, "convolution"), convolution.convolution),
    **dict.fromkeys(("matmul", "mm", "bmm", "rmatmul", "mv", "dot", "vdot"), products.matmul),
    **dict.fromkeys(matrices.DECOMPOSITIONS, matrices.decomposition),
    "tensordot": products.tensordot,
    "einsum": products.einsum,
    "embedding": products.embedding,
    "scaled_dot_product_attention": attention.attention,
    **dict.fromkeys(recurrent.LAYERS, recurrent.layer),
    "_pad_packed_sequence": fallback.replicated,  # torch looks at numbers in it, so it cannot be taken apart
    **dict.fromkeys(recurrent.CELLS, recurrent.cell),
}  # fmt: skip


_OF_CALLED = losses.DISTANCES | {"unfold", "binary_cross_entropy", "binary_cross_entropy_with_logits"}
"""Functions of `torch.nn.functional` that share a name with what they call, or with a method of tensors."""


def has_rule(func: Callable[..., Any]) -> bool:
    """Whether there is a rule for a function; of losses and `unfold`, for what they are called by, which takes other
    arguments."""
    name = name_of(func)
    if name not in RULES:
        return is_pointwise(func)
    return not (name in _OF_CALLED and isinstance(func, FunctionType))


def apply(engine: Engine, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run one operation; `args` hold values where tensors would be."""
    name = name_of(func)
    op = Op(name, func, args, kwargs)
    rule = RULES.get(name) or (elementwise.elementwise if is_pointwise(func) else fallback.replicated)
    try:
        return engine.run_rule(rule, op)
    except _UNFORESEEN:  # if the call is wrong, torch says why
        engine.record.without_rule[name] += 1
        return engine.run_rule(fallback.replicated, op)


_UNFORESEEN = (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""What a rule raises for a form of a call that it does not know, alike on all processes: such calls have no rule."""
