"""Described models: `transformer(layers=12, hidden=768, heads=12)` builds the same `Model` as reading a file.

For quick what-if questions and for comparison with published systems, whose models are known by their sizes alone.
"""

from shardplan.models.factory import factory_of, title_of_factory
from shardplan.models.hugging_face import configured, is_config
from shardplan.models.named import NAMED, PREFIX, described, size_in, title_of
from shardplan.models.spec import TransformerSpec
from shardplan.models.titles import title_of_model
from shardplan.models.transformer import build, transformer

__all__ = [
    "NAMED",
    "PREFIX",
    "TransformerSpec",
    "build",
    "configured",
    "described",
    "factory_of",
    "is_config",
    "size_in",
    "title_of",
    "title_of_factory",
    "title_of_model",
    "transformer",
]
