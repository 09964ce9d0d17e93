"""Reading profiles: units, defaults, inheritance, and the exact text of every complaint."""
# ruff: noqa: E501 - messages are written as users see them

import json
import math
import textwrap

import pytest

from shardplan.cluster.build import profile_from_resolved
from shardplan.cluster.keys import PROFILE
from shardplan.cluster.mesh import make_cluster
from shardplan.cluster.profile import load_profile
from shardplan.cluster.yaml import Number, Section, Sequence, Table
from shardplan.errors import ShardplanError

SMALL = """
    name: mine
    provenance: {status: measured}
    mesh: {axes: [{name: machine, size: 2, level: net}, {name: gpu, size: 8, level: up}]}
    device: {memory_bytes: 40e9, hbm_gbps: 1555, peak_tflops: {bf16: 312}}
    levels:
      up: {link_gbps: 300}
      net: {node_gbit: 400, nics: 4}
    """


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text, name="mine.yaml"):
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return name

    return write


def complaint(path):
    with pytest.raises(ShardplanError) as caught:
        load_profile(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_required_keys_are_enough_and_every_default_is_written_out(write):
    profile = load_profile(write(SMALL))
    assert profile.name == "mine"
    assert profile.warnings == ()
    device, (up, net) = profile.device, profile.levels
    assert (device.memory_bytes, device.usable_bytes) == (40_000_000_000, 35_300_000_000)
    assert (device.hbm_bytes_per_s, device.peak_flops) == (1555e9, {"bf16": 312e12})
    assert (device.gemm.e, device.memory_efficiency, device.launch_s) == (0.75, 0.75, 4e-6)
    assert (up.devices, up.link_bytes_per_s, up.node_bytes_per_s, up.base_s, up.step_s) == (8, 300e9, 0, 5e-6, 1e-6)
    assert up.eta_by_ranks == {"all_reduce": {2: 0.76, 4: 0.8, 8: 0.8}, "default": {2: 0.68, 4: 0.78, 8: 0.8}}
    assert (net.devices, net.node_bytes_per_s, net.link_bytes_per_s) == (0, 50e9, 12.5e9)
    assert (net.base_s, net.step_s, net.ramp_bytes) == (5e-6, 1e-5, 30e6)
    assert net.eta == {"all_reduce": 0.95, "default": 0.84, "partial": 0.96}
    assert profile.coalesce.bucket_bytes == 25e6
    assert json.loads(json.dumps(profile.resolved)) == profile.resolved
    assert profile_from_resolved(profile.resolved) == profile


@pytest.mark.parametrize(("written", "bucket_bytes"), [("0", 0.0), ("32", 32e6), ("25 MiB", 25 * 2**20), ("1 GB", 1e9)])
def test_buckets_of_gradients(write, written, bucket_bytes):
    profile = load_profile(write(textwrap.dedent(SMALL) + f"coalesce: {{bucket_mb: {written}}}\n"))
    assert profile.coalesce.bucket_bytes == bucket_bytes


def test_a_profile_in_a_plan_of_before_there_were_buckets_has_none(write):
    resolved = dict(load_profile(write(SMALL)).resolved)
    del resolved["coalesce"]
    assert profile_from_resolved(resolved).coalesce.bucket_bytes == 0


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "{bucket_mb: -1}",
            "23: error[bad-value]: coalesce.bucket_mb: expected at least 0 and at most 1e6 MB, found '-1'",
        ),
        (
            "{bucket_mb: 25 GB/s}",
            (
                "23: error[bad-value]: coalesce.bucket_mb: expected the unit of a size such as 8 MB, found 'GB/s' in "
                "'25 GB/s'"
            ),
        ),
        ("{bucket_mb: auto}", "23: error[bad-value]: coalesce.bucket_mb: expected a size such as 8 MB, found 'auto'"),
        (
            "{bucket: 25}",
            (
                "12: error[unknown-key]: unknown key 'bucket' in 'coalesce'\n  allowed: bucket_mb\n"
                "hint: did you mean 'bucket_mb'?"
            ),
        ),
        ("25", "11: error[bad-value]: coalesce: expected a mapping, found a value"),
    ],
)
def test_what_is_no_bucket(write, written, message):
    text = textwrap.dedent(SMALL) + f"coalesce: {written}\n"
    assert complaint(write(text)) == f"mine.yaml:8:{message}"


def test_a_default_efficiency_replaces_what_is_assumed_for_each_collective(write):
    profile = load_profile(write(SMALL.replace("link_gbps: 300", "link_gbps: 300, eta: {default: 0.5}")))
    assert profile.levels[0].eta == {"nvls": 1.0, "default": 0.5}
    assert profile.levels[0].eta_by_ranks == {}


def test_extends_a_shipped_profile_key_by_key(write):
    path = write("""
        extends: builtin:h100-dgx
        device: {memory_bytes: 94 GB}
        levels: {net: {node_gbit: 800}}
        """)
    mine, base = load_profile(path), load_profile("h100-dgx")
    assert mine.name == "mine"
    assert mine.device.memory_bytes == 94 * 10**9
    assert mine.device.hbm_bytes_per_s == base.device.hbm_bytes_per_s
    assert mine.levels[0] == base.levels[0]
    assert mine.levels[1].node_bytes_per_s == 100e9
    assert [warning.code for warning in mine.warnings] == ["suspect-memory"]
    assert load_profile("builtin:h100-dgx") == base


def test_extends_a_file_beside_it(write, tmp_path):
    (tmp_path / "sub").mkdir()
    write(SMALL, "base.yaml")
    write("{extends: ../base.yaml, device: {memory_bytes: 20e9}}", "sub/small.yml")
    assert load_profile("sub/small.yml").device.memory_bytes == 20_000_000_000
    assert load_profile("sub/small.yml").name == "small"


def test_curves_are_read_in_order_of_size(write):
    curve = "{collective: all_reduce, group: {nodes: 1, per_node: 8}, points: [[1 MiB, 90 us], [1 KiB, 0.02 ms]]}"
    path = write(SMALL.replace("nics: 4}", f"nics: 4}}\n    curves: [{curve}]"))
    (curve,) = load_profile(path).curves
    assert (curve.collective, curve.nodes, curve.per_node) == ("all_reduce", 1, 8)
    assert curve.points == ((1024.0, 2e-5), (1048576.0, 9e-5))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("S(0)@x", "S(0)@x"),
        ("a b=c,d", "a b=c,d"),
        ("x, P@gpu", "x, P@gpu"),
        ("a;b", "a;b"),
        ("2d", "2d"),
        ("", ""),
        ("a\\n::error::hi", r"a\n::error::hi"),
        ("a\\e[31m", r"a\x1b[31m"),
        ("a\u202eb", r"a\u202eb"),
    ],
)
def test_names_of_axes_and_levels_that_no_layout_can_write(write, name, shown):
    allowed = "letters, digits, '_' and '-', beginning with a letter or '_'"
    path = write(SMALL.replace("name: gpu,", f'name: "{name}",'))
    assert complaint(path) == (
        f"mine.yaml:3:60: error[bad-value]: mesh.axes[1].name: expected {allowed}, found '{shown}'"
    )
    level = complaint(write(SMALL.replace("up: {", f'"{name}": {{')))
    assert level == f"mine.yaml:6:3: error[bad-value]: levels: expected {allowed} as key, found '{shown}'"


def test_names_of_axes_with_hyphens_and_letters_of_any_language(write):
    profile = load_profile(write(SMALL.replace("name: gpu,", "name: карта-b,")))
    assert str(make_cluster(profile, "карта-b0=2,карта-b1=4").mesh) == "карта-b0=2 x карта-b1=4"


def test_names_of_profiles_are_on_one_line(write):
    expected = "text on one line without control characters"
    assert complaint(write(SMALL.replace("name: mine", r'name: "p\n::error::x"'))) == (
        f"mine.yaml:1:7: error[bad-value]: name: expected {expected}, found 'p\\n::error::x'"
    )
    assert complaint(write(SMALL.replace("name: mine\n    ", ""), "a\u202eb.yaml")) == (
        f"a\\u202eb.yaml:1:1: error[bad-value]: name: the name of the file, 'a\\u202eb', is no {expected}\n"
        "hint: give the profile a 'name'"
    )


def test_every_fault_is_told_with_its_place_and_all_at_once(write):
    path = write("""
        name: mine
        mesh: {axes: [{name: machine, size: 0, level: net}, {name: gpu, size: 2.5, level: up}]}
        device:
          memory_bytes: 40 Gigs
          hbm_gbps: 1555 GB
          peak_tflop: {bf16: 312}
          allow_tf32: no
          launch_us:
          launch_us: 3
        levels:
          up: {link_gbps: 300, eta: {default: 1.5}, topology: ring, busbw_gbps: {all_gather: {two: 3}}}
          net: [400]
        provenance: estimated
        """)
    assert complaint(path) == textwrap.dedent("""\
        mine.yaml:2:37: error[bad-value]: mesh.axes[0].size: expected at least 1 and at most 1e6, found '0'
        mine.yaml:2:71: error[bad-value]: mesh.axes[1].size: expected a whole number, found '2.5'
        mine.yaml:4:17: error[bad-value]: device.memory_bytes: expected the unit of a size such as 80 GB, found 'Gigs' in '40 Gigs'
        mine.yaml:5:13: error[bad-value]: device.hbm_gbps: expected the unit of a bandwidth such as 450 GB/s, found 'GB' in '1555 GB'
        mine.yaml:6:3: error[unknown-key]: unknown key 'peak_tflop' in 'device'
          allowed: kind, memory_bytes, usable_fraction, reserved_bytes, hbm_gbps, peak_tflops, allow_tf32, gemm, mem_efficiency, launch_us, attention, attention_keys
        hint: did you mean 'peak_tflops'?
        mine.yaml:7:15: error[bad-value]: device.allow_tf32: expected true or false, found 'no'
        mine.yaml:8:13: error[bad-value]: device.launch_us: has no value
        mine.yaml:9:3: error[duplicate-key]: key 'device.launch_us' is given twice
          first on line 8
        mine.yaml:11:39: error[bad-value]: levels.up.eta.default: expected at least 0.01 and at most 1.2, found '1.5'
        mine.yaml:11:55: error[bad-value]: levels.up.topology: expected one of switch, full_mesh, torus, pcie, custom, found 'ring'
        mine.yaml:11:87: error[bad-value]: levels.up.busbw_gbps.all_gather: expected a whole number of at least 1 as key, found 'two'
        mine.yaml:12:8: error[bad-value]: levels.net: expected a mapping, found a list
        mine.yaml:13:13: error[bad-value]: provenance: expected a mapping, found a value""")  # fmt: skip


def test_missing_keys_are_told_where_they_belong(write):
    path = write("""
        mesh: {axes: [{name: gpu, size: 8}]}
        device: {hbm_gbps: 1555, peak_tflops: {}}
        levels:
          up: {base_us: 5}
          far: {topology: full_mesh}
          odd: {topology: custom}
        """)
    assert complaint(path) == textwrap.dedent("""\
        mine.yaml:2:9: error[missing-key]: missing key 'device.memory_bytes'
        mine.yaml:1:15: error[missing-key]: missing key 'mesh.axes[0].level'
        mine.yaml:2:39: error[missing-key]: missing key 'device.peak_tflops.bf16'
        mine.yaml:4:7: error[missing-key]: levels.up: one of 'link_gbps' and 'node_gbit' is needed
        mine.yaml:5:8: error[missing-key]: missing key 'levels.far.pair_gbps'
        mine.yaml:6:8: error[missing-key]: missing key 'levels.odd.busbw_gbps'""")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mine.yaml: error[yaml-syntax]: the file is empty"),
        ("a: [1", "mine.yaml:2:1: error[yaml-syntax]: not valid YAML: did not find expected ',' or ']'"),
        ("[" * 100_000, "mine.yaml:1:33: error[yaml-syntax]: nested more than 32 levels deep"),
        ("- a", "mine.yaml:1:1: error[bad-value]: profile: expected a mapping, found a list"),
        ("schema: 2", "mine.yaml:1:9: error[bad-value]: schema: expected 1, found '2'"),
        (
            "extends: builtin:h100-dxg",
            (
                "mine.yaml:1:10: error[unknown-profile]: unknown profile 'h100-dxg'\n"
                "  shipped profiles: a100-dgx, a100-p4d, a10g-g5-48xl, b200-dgx, b300-dgx, gb200-nvl72, gb300-nvl72, "
                "generic, gh200-4, h100-dgx, h200-dgx, l4-g6-48xl, l40s-g6e-48xl, mi300x-8, mi325x-8, mi355x-8, "
                "tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, trn2-16, v100-p3-16xl\n"
                "hint: did you mean 'h100-dgx'?"
            ),
        ),
        (
            "extends: h100-dgx",
            (
                "mine.yaml:1:10: error[bad-value]: extends: 'h100-dgx' is no profile\n"
                "hint: write builtin:NAME for a shipped profile, or a relative path ending in .yaml"
            ),
        ),
        (
            "extends: gone.yaml",
            "mine.yaml:1:10: error[unreadable-profile]: cannot read profile 'gone.yaml': No such file or directory",
        ),
        (
            "extends: mine.yaml",
            "mine.yaml:1:10: error[cyclic-extends]: profiles extend each other in a circle: mine.yaml -> mine.yaml",
        ),
        (
            "<<: {name: a}",
            (
                "mine.yaml:1:1: error[unknown-key]: unknown key '<<'\n"
                "  allowed: schema, name, extends, provenance, mesh, device, levels, overlap, coalesce, training, spread, environment, curves\n"
                "hint: use 'extends: builtin:NAME' to build on a profile"
            ),
        ),
    ],
)
def test_files_that_cannot_be_used(write, text, message):
    assert complaint(write(text)) == message


def test_a_circle_of_several_files(write):
    write("extends: two.yaml", "one.yaml")
    write("extends: one.yaml", "two.yaml")
    assert complaint("one.yaml") == (
        "two.yaml:1:10: error[cyclic-extends]: profiles extend each other in a circle: one.yaml -> two.yaml -> one.yaml"
    )


def test_a_file_that_is_not_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    assert complaint("mine.yaml") == "error[unreadable-profile]: cannot read profile 'mine.yaml': it is not UTF-8 text"
    (tmp_path / "mine.yaml").write_bytes(b"a: \x07")
    assert complaint("mine.yaml").startswith("mine.yaml: error[yaml-syntax]: not valid YAML: ")


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(ShardplanError) as caught:
        load_profile("a100-dgy")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.summary, diagnostic.hint) == ("unknown profile 'a100-dgy'", "did you mean 'a100-dgx'?")
    with pytest.raises(ShardplanError) as caught:
        load_profile("zzz")
    assert caught.value.diagnostics[0].hint == "a profile of your own is given as a path ending in .yaml"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "bf16: 312}",
            "bf16: 624}, kind: A100-SXM4-40GB",
            (
                "mine.yaml:4:66: warning[suspect-peak]: bf16 peak 624 TFLOP/s; the dense peak of A100-SXM4-40GB is 312\n"
                "hint: the number with sparsity is twice the dense one"
            ),
        ),
        (
            "memory_bytes: 40e9,",
            "memory_bytes: 40 GiB, kind: A100-SXM4-40GB,",
            (
                "mine.yaml:4:24: warning[suspect-memory]: memory of 42.9497 GB; A100-SXM4-40GB has 40 GB\n"
                "hint: 1 GiB is 1.074 GB; another device has another name, device.kind"
            ),
        ),
        (
            "link_gbps: 300",
            "link_gbps: 2400",
            (
                "mine.yaml:6:19: warning[suspect-bandwidth]: levels.up: 2400 GB/s per device is more than any link has\n"
                "hint: link_gbps counts gigabytes per second; write '400 Gb/s' for gigabits"
            ),
        ),
        (
            "node_gbit: 400, nics: 4",
            "link_gbps: 400",
            (
                "mine.yaml:7:8: warning[suspect-levels]: level 'net' (400 GB/s per device) is faster than 'up' (300 GB/s) "
                "inside it\nhint: are the two swapped, or gigabits given as gigabytes?"
            ),
        ),
        (
            "status: measured",
            "status: estimated",
            (
                "mine.yaml:2:22: warning[estimated-profile]: the numbers of profile 'mine' are estimates, not measurements"
                "\nhint: calibrate on the machine itself before trusting absolute times"
            ),
        ),
        (
            "link_gbps: 300",
            "link_gbps: 300, nics: 2, wrap: true, pair_gbps: 3",
            (
                "mine.yaml:6:30: warning[ignored-key]: levels.up: 'nics' has no effect without node_gbit\n"
                "mine.yaml:6:39: warning[ignored-key]: levels.up: 'wrap' has no effect without topology torus\n"
                "mine.yaml:6:56: warning[ignored-key]: levels.up: 'pair_gbps' has no effect without topology full_mesh"
            ),
        ),
        (
            "nics: 4}",
            "nics: 4, nvls: true}",
            "mine.yaml:7:40: warning[ignored-key]: levels.net: 'nvls' has no effect beside node_gbit",
        ),
        (
            "nics: 4}",
            "nics: 4}\n    overlap: {kappa: 1.2, tp: 0.5, grad_reduce: 0.9}",
            "\n".join(
                f"mine.yaml:8:{column}: warning[ignored-key]: 'overlap.{key}' has no effect since plans of format 1.4: "
                "the schedule of a step says what overlaps compute"
                for column, key in ((45, "grad_reduce"), (27, "tp"))
            ),
        ),
        (
            "nics: 4}",
            "nics: 4}\n      pod: {link_gbps: 1}",
            "mine.yaml:8:8: warning[unused-level]: no mesh axis lies on level 'pod'",
        ),
        (
            "nics: 4}",
            "nics: 4}\n    curves: [{collective: all_reduce, group: {nodes: 1, per_node: 8}, points: [[1,2], [2,1]]}]",
            (
                "mine.yaml:8:10: warning[curve-repaired]: curve of all_reduce on 1 x 8 devices: time falls where size "
                "rises; the slower time is used"
            ),
        ),
    ],
)
def test_what_looks_wrong_is_a_warning(write, old, new, message):
    profile = load_profile(write(SMALL.replace(old, new)))
    assert "\n".join(map(str, profile.warnings)) == message


@pytest.mark.parametrize(
    ("group", "levels", "reason"),
    [
        ("nodes: 9, per_node: 99", "", "a unit of level 'up' has 8 devices"),
        ("nodes: 1, per_node: 1", "", "one device sends nothing"),
        ("nodes: 3, per_node: 8", ", devices: 16", "there are 2 units of level 'up'"),
        ("nodes: 3, per_node: 8", "", None),
        ("nodes: 2, per_node: 8", ", devices: 16", None),
    ],
)
def test_a_curve_of_a_group_that_there_is_not_gets_a_warning(write, group, levels, reason):
    curves = (
        "\n    curves:\n"
        "      - {group: {nodes: 1, per_node: 8}, points: [[1 MB, 1 us], [2 MB, 2 us]]}\n"
        f"      - {{group: {{{group}}}, points: [[1 MB, 1 us], [2 MB, 2 us]]}}"
    )
    profile = load_profile(write(SMALL.replace("nics: 4}", f"nics: 4{levels}}}{curves}")))
    nodes, per_node = (part.partition(": ")[2] for part in group.split(", "))
    label = f"mine.yaml:10:5: warning[ignored-key]: curve of all_reduce on {nodes} x {per_node} devices has no effect"
    assert [str(one) for one in profile.warnings] == ([f"{label}: {reason}"] if reason else [])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "nics: 4}",
            "nics: 4}\n      pod: {link_gbps: 1, devices: 20}",
            "mine.yaml:8:32: error[bad-value]: levels.pod: devices (20) is no multiple of the 16 of level 'net'",
        ),
        (
            "level: up}",
            "level: upp}",
            (
                "mine.yaml:3:15: error[unknown-level]: mesh axis 'gpu' lies on level 'upp', which is not there\n"
                "hint: did you mean 'up'?"
            ),
        ),
        ("name: gpu,", "name: machine,", "mine.yaml:3:15: error[bad-value]: mesh.axes: two axes have the same name"),
        (
            "name: machine, size: 2, level: net}, {name: gpu,",
            "name: gpu1, size: 2, level: net}, {name: gpu0,",
            (
                "mine.yaml:3:15: error[bad-value]: mesh.axes: 'gpu1' and 'gpu0' differ only in their number, and lie on "
                "different levels\n"
                "hint: a number counts the axes of one level: give axes of different levels different names"
            ),
        ),
        (
            "[{name: machine, size: 2, level: net}, {name: gpu, size: 8, level: up}]",
            "[{name: gpu, size: 8, level: up}, {name: machine, size: 2, level: net}]",
            (
                "mine.yaml:3:15: error[bad-value]: mesh.axes: not ordered from the outermost level inwards\n"
                "hint: levels from the outermost inwards: net, up"
            ),
        ),
        (
            "memory_bytes: 40e9",
            "memory_bytes: 1e9",
            (
                "mine.yaml:4:24: error[bad-value]: device: nothing of the memory is usable\n"
                "hint: usable = memory_bytes * usable_fraction - reserved_bytes"
            ),
        ),
        (
            "nics: 4}",
            "nics: 4}\n    curves: [{collective: all_gather, group: {nodes: 2, per_node: 8}, points: [[1, 2]]}]",
            "mine.yaml:8:10: error[bad-value]: curve of all_gather on 2 x 8 devices: at least two points are needed",
        ),
    ],
)
def test_what_cannot_be_is_an_error(write, old, new, message):
    assert complaint(write(SMALL.replace(old, new))) == message


def numbers(kind, path=""):
    """(path, number) of everything that a profile may say in numbers."""
    if isinstance(kind, Number):
        yield path, kind
    elif isinstance(kind, Section):
        for name, field in kind.fields.items():
            yield from numbers(field, f"{path}.{name}")
    elif isinstance(kind, Table | Sequence):
        for field in (kind.values, *(kind.items if isinstance(kind, Sequence) else (kind.scalar,))):
            yield from numbers(field, path) if field is not None else ()


def test_every_number_has_limits_and_what_has_a_unit_of_a_rate_is_not_zero():
    found = dict(numbers(PROFILE.section))
    assert {".levels.link_gbps", ".device.attention", ".levels.eta", ".curves.points"} <= found.keys()
    assert [path for path, number in found.items() if not (0 <= number.minimum <= number.maximum <= 1e15)] == []
    rates = [number for path, number in found.items() if path.endswith(("_gbps", "_gbit", "_tflops"))]
    assert len(rates) == 6
    assert all(number.minimum >= 1e-4 for number in rates)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "node_gbit: 400",
            "node_gbit: 1e50",
            "7:20: error[bad-value]: levels.net.node_gbit: expected at least 0.001 and at most 1e8 Gb/s, found '1e50'",
        ),
        (
            "hbm_gbps: 1555",
            "hbm_gbps: 1e-300",
            "4:40: error[bad-value]: device.hbm_gbps: expected at least 0.0001 and at most 1e6 GB/s, found '1e-300'",
        ),
        (
            "hbm_gbps: 1555",
            "launch_us: 1e300, hbm_gbps: 1555",
            "4:41: error[bad-value]: device.launch_us: expected at least 0 and at most 1e7 us, found '1e300'",
        ),
        (
            "link_gbps: 300",
            "link_gbps: 300, eta: {all_reduce: {}}",
            "6:42: error[bad-value]: levels.up.eta.all_reduce: expected at least one entry, found none\nhint: leave it out",
        ),
        (
            "link_gbps: 300",
            "link_gbps: 300, eta: {default: {}}",
            "6:39: error[bad-value]: levels.up.eta.default: expected at least one entry, found none\nhint: leave it out",
        ),
        (
            "node_gbit: 400, nics: 4",
            "node_gbit: 1, nics: 1e6",
            (
                "7:8: error[bad-value]: levels.net: 1.25e-07 GB/s per device, which follows from its other keys, is not "
                "at least 0.0001 and at most 1e6 GB/s"
            ),
        ),
    ],
)
def test_what_no_machine_has_is_an_error(write, old, new, message):
    assert complaint(write(SMALL.replace(old, new))) == f"mine.yaml:{message}"


def test_minus_zero_is_zero(write):
    device = load_profile(write(SMALL.replace("hbm_gbps", "launch_us: -0.0, hbm_gbps"))).device
    assert math.copysign(1.0, device.launch_s) == 1.0
