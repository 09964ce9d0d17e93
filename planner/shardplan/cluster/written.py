"""A profile as text that is a profile itself, with every default."""

from __future__ import annotations

import json

import yaml

from shardplan.cluster.build import Profile
from shardplan.cluster.keys import LEVEL, Plain
from shardplan.cluster.resolve import ignored_beside


def written_text(profile: Profile) -> str:
    """The YAML of a profile file that resolves to the same values as `profile`, without warnings of its own."""
    resolved = json.loads(json.dumps(profile.resolved, default=dict))
    return yaml.safe_dump(_written(resolved), sort_keys=False, allow_unicode=True, width=100, default_flow_style=None)


def _written(resolved: Plain) -> Plain:
    """The inverse of `shardplan.cluster.resolve.resolve`: levels have their names as keys."""
    levels = {level["name"]: _effective(level) for level in resolved["levels"]}
    return {key: levels if key == "levels" else value for key, value in resolved.items() if value != []}


def _effective(level: Plain) -> Plain:
    """A level without the values that mean none, and without those that a level of its kind ignores."""
    return {
        key.key: level[key.key]
        for key in LEVEL.keys
        if level[key.key] or (key.default is None and key.key != "devices")
        if not ignored_beside(key, level)
    }
