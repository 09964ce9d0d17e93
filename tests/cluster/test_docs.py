"""The reference of profile keys names every key there is."""

import re
from pathlib import Path

from shardplan.cluster.schema import DEVICE, LEVEL, PROFILE

TEXT = (Path(__file__).parents[2] / "docs" / "cluster-profiles.md").read_text(encoding="utf-8")


def test_every_key_has_its_row_and_every_row_its_key():
    rows = set(re.findall(r"^\| `([a-z0-9_.]+)` \|", TEXT, flags=re.MULTILINE))
    nested = {"device", "mesh"}
    keys = (
        (set(PROFILE.fields) - nested) | {"mesh.axes"} | {f"device.{key}" for key in DEVICE.fields} | set(LEVEL.fields)
    )
    assert rows == keys
