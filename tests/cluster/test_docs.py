"""The tables of keys in the documentation are those that profiles are read with."""

from pathlib import Path

from shardplan.cluster.profile import load_profile
from shardplan.cluster.reference import page

TEXT = (Path(__file__).parents[2] / "docs" / "cluster-profiles.md").read_text(encoding="utf-8")


def test_the_tables_of_keys_are_those_that_profiles_are_read_with():
    assert page(TEXT) == TEXT, "run `python -m shardplan.cluster.reference`"


def test_the_first_example_is_a_profile_without_warnings(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    given = [str(each) for each in load_profile("h100-dgx").warnings]
    assert [str(each) for each in load_profile(str(file)).warnings] == given


def test_there_is_a_row_for_every_number():
    for key in ("device.gemm.k0", "overlap.kappa", "coalesce.bucket_mb", "scale_loss"):
        assert f"| `{key}` |" in TEXT
