"""What a plan is asked for on the command line: model, mesh, cluster, mode and memory, for every verb that plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from shardplan.verbs.inputs import (
    Attempts,
    dim_option,
    load_model,
    parse_cache,
    parse_dims,
    parse_memory_limit,
    profile_names,
)
from shardplan.verbs.session import Verb, completing, option

if TYPE_CHECKING:
    from shardplan.cluster.types import Cluster
    from shardplan.graph.options import PlanOptions
    from shardplan.model.types import Model

_OPTIONS = (
    option("-m", "--mesh", metavar="SIZES", help="4x4 or machine=4,gpu=4, outermost first.  [default: the profile's]"),
    option(
        "-c",
        "--cluster",
        metavar="NAME|FILE",
        shell_complete=completing(profile_names, files=True),
        default="h100-dgx",
        show_default=True,
        help="A shipped profile or a YAML file.",
    ),
    option(
        "--mode",
        type=click.Choice(["training", "inference"]),
        default="training",
        show_default=True,
        help="What one step is.",
    ),
    dim_option,
    option(
        "--optimizer",
        type=click.Choice(["adam-mixed", "adam-fp32", "sgd", "none"]),
        default="adam-mixed",
        show_default=True,
        help="Whose state is kept, in training.",
    ),
    option(
        "--shard-optimizer",
        is_flag=True,
        help="Optimizer state may be sharded apart from its weight (ZeRO-1, Megatron's distributed optimizer).",
    ),
    option(
        "--microbatches",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Equal parts in which the batch runs.",
    ),
    option(
        "--remat",
        type=click.Choice(["none", "selective", "full", "auto"]),
        default="none",
        show_default=True,
        help="Which activations are computed again in backward instead of kept; auto chooses with the layouts.",
    ),
    option(
        "--kv-cache",
        metavar="tokens=N",
        help="In inference, keep room for the keys and values of so many tokens, all sequences together.",
    ),
    option("--memory-limit", metavar="SIZE", help="What a device may use, such as '40 GiB'.  [default: the profile's]"),
)


@dataclass(frozen=True)
class Asked:
    """`options`: those of a plan, as far as `asking_options` give them."""

    model: Model
    cluster: Cluster
    options: PlanOptions


def asking_options(function: Verb) -> Verb:
    """Add the options that say what is planned, and for what."""
    for add in reversed(_OPTIONS):
        function = add(function)
    return function


class Asking:
    """Reads `asking_options` in two steps, so that a verb can read more in between and all faults are said together."""

    def __init__(self, given: Mapping[str, Any], attempt: Attempts) -> None:
        from shardplan.cluster.mesh import make_cluster
        from shardplan.cluster.profile import load_profile

        self._given = given
        dims = attempt(lambda: parse_dims(given["dims"]))
        self._limit = attempt(lambda: parse_memory_limit(given["memory_limit"]))
        self._cached = attempt(lambda: parse_cache(given["kv_cache"]))
        self.cluster = attempt(lambda: make_cluster(load_profile(given["cluster"]), given["mesh"]))
        self._model = attempt(lambda: load_model(given["model"], dims)) if dims is not None else None

    def finish(self) -> Asked:
        """What was asked, once the attempts are known to have succeeded."""
        from shardplan.graph.options import PlanOptions

        assert self._model is not None
        assert self.cluster is not None
        named = {name: self._given[name] for name in ("mode", "optimizer", "shard_optimizer", "microbatches", "remat")}
        options = PlanOptions(**named, memory_limit_bytes=self._limit, kv_cache_tokens=self._cached or 0)
        return Asked(self._model, self.cluster, options)
