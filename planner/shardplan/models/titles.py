"""The name of a model from what was given as MODEL, for plans and the files about them."""

from __future__ import annotations

from pathlib import PurePath

from shardplan.errors import ShardplanError
from shardplan.models.factory import title_of_factory
from shardplan.models.hugging_face import is_config, read_config, title_of_config
from shardplan.models.named import PREFIX, title_of


def title_of_model(given: str) -> str:
    """`resnet50` for `models/resnet50.onnx`, `llama3-70b` for its description, `nets.build` for `my_pkg.nets:build`,
    `qwen` for `qwen/config.json`."""
    if given.startswith(PREFIX):
        return title_of(given)
    if is_config(given):
        try:
            return title_of_config(given, read_config(given))
        except ShardplanError:  # the file is not here; whoever reads it says so
            return PurePath(given).stem
    return title_of_factory(given) or PurePath(given).stem
