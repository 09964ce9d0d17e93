"""`profiles detect`: what tools print of a machine becomes a profile; what they do not say is said."""

import re
from pathlib import Path

import pytest

from shardplan.cli import main
from shardplan.cluster.profile import load_profile
from shardplan.errors import ShardplanError
from shardplan.extras.detect.captures import machine_of
from shardplan.extras.detect.here import texts_here
from shardplan.extras.detect.profile import detected

UNDERLINE = "\x1b[4m"


def topology(gpus, link, cards=0, far=None):
    """A matrix as `nvidia-smi topo -m` prints it; `far`: between the two halves."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(cards)]
    head = "\t".join(
        ["", *(f"{UNDERLINE}{name}" for name in names), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID\x1b[0m"]
    )
    rows = []
    for i, name in enumerate(names):
        half = [far if far and (i < gpus // 2) != (j < gpus // 2) else link for j in range(gpus)]
        cells = [("X" if i == j else half[j] if max(i, j) < gpus else "PXB") for j, _ in enumerate(names[:gpus])]
        cells += ["X" if i == j else "SYS" for j in range(gpus, len(names))]
        rows.append(
            "\t".join([name, *(f" {cell} " for cell in cells), *(["0-47,96-143", "0", "N/A"] if i < gpus else [])])
        )
    legend = "\n\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n  NV#  = A bonded set of # NVLinks\n"
    return "\n".join([head, *rows]) + legend


def query(kind, mib, count, head="name, memory.total [MiB]"):
    return "\n".join([head, *[f"{kind}, {mib} MiB"] * count]) + "\n"


H100 = query("NVIDIA H100 80GB HBM3", 81559, 8)
RATES = "400 Gb/sec (4X NDR)\n" * 8
SCONTROL = """NodeName=node01 Arch=x86_64 CoresPerSocket=48
   CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.02
   Gres=gpu:h100:8(S:0-1)
   RealMemory=2000000 AllocMem=0 FreeMem=1890000 Sockets=2 Boards=1

NodeName=node02 Arch=x86_64 CoresPerSocket=48
   Gres=gpu:h100:8(S:0-1)
"""


def profile(tmp_path, *texts):
    found = detected(machine_of([(f"text {i}", text) for i, text in enumerate(texts)]), "mine")
    file = tmp_path / "mine.yaml"
    file.write_text(found.text)
    return load_profile(str(file)), found


@pytest.mark.parametrize(
    ("kind", "mib", "link", "base", "gbps"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "NV18", "h100-dgx", 450),
        ("NVIDIA A100-SXM4-80GB", 81920, "NV12", "a100-dgx", 300),
        ("NVIDIA A100-SXM4-40GB", 40960, "NV12", "a100-p4d", 300),
        ("NVIDIA H200", 143771, "NV18", "h200-dgx", 450),
        ("NVIDIA B200", 183359, "NV18", "b200-dgx", 900),
    ],
)
def test_a_machine_of_nvlinks(tmp_path, kind, mib, link, base, gbps):
    loaded, found = profile(
        tmp_path, topology(8, link, cards=8), query(kind, mib, 8), RATES, SCONTROL.replace(":h100", "")
    )
    assert found.base == base
    assert found.unknown == ()
    assert loaded.levels[0].link_bytes_per_s == gbps * 1e9
    assert loaded.levels[-1].node_bytes_per_s == 8 * 400e9 / 8
    assert [axis.size for axis in loaded.axes] == [2, 8]


def test_pcie_is_not_guessed(tmp_path):
    loaded, found = profile(tmp_path, topology(4, "PHB", far="SYS"), query("NVIDIA L4", 23034, 4))
    assert found.base == "l4-g6-48xl"
    assert [axis.size for axis in loaded.axes] == [1, 4]
    said = "\n".join(each.summary for each in found.unknown)
    assert "how fast PHB, SYS are (PCIe)" in said
    assert "how many machines there are" in said
    assert "how fast the network is" in said
    assert all(f"# not known: {each.summary}" in found.text for each in found.unknown)


def test_pairs_of_gpus_with_a_bridge(tmp_path):
    _, found = profile(tmp_path, topology(4, "NV12", far="SYS"), query("NVIDIA A100-SXM4-80GB", 81920, 4))
    assert any("NV12, SYS are (not all pairs alike)" in each.summary for each in found.unknown)
    assert "link_gbps" not in found.text


def test_columns_in_another_order_and_no_head(tmp_path):
    _, found = profile(tmp_path, "0, 81559 MiB, NVIDIA H100 80GB HBM3\n1, 81559 MiB, NVIDIA H100 80GB HBM3\n")
    assert found.base == "h100-dgx"
    assert "{name: gpu, size: 2" in found.text


def test_slurm_alone_says_little(tmp_path):
    loaded, found = profile(tmp_path, SCONTROL)
    assert [axis.size for axis in loaded.axes] == [2, 8]
    assert any("how much memory" in each.summary for each in found.unknown)


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["hello"], "unread-capture"),
        ([topology(8, "NV18"), query("NVIDIA H100 80GB HBM3", 81559, 4)], "other-machine"),
        ([H100 + "NVIDIA L4, 23034 MiB\n"], "mixed-devices"),
        ([SCONTROL.replace("gpu:h100:8", "gpu:h100:4", 1)], "mixed-devices"),
        ([topology(8, "NV18")], "unknown-device"),
        ([query("NVIDIA GeForce RTX 4090", 24564, 8)], "unknown-device"),
        ([query("NVIDIA H100 PCIe", 40000, 8)], "unknown-device"),
    ],
)
def test_what_is_refused(texts, code):
    with pytest.raises(ShardplanError) as raised:
        detected(machine_of([("here", text) for text in texts]), "mine")
    assert raised.value.diagnostics[0].code == code


def test_the_verb(tmp_path, capsys, monkeypatch):
    for name, text in (("topo", topology(8, "NV18")), ("query", H100)):
        (tmp_path / name).write_text(text)
    files = ["--from", str(tmp_path / "topo"), "--from", str(tmp_path / "query")]
    output = tmp_path / "mine.yaml"
    assert main(["profiles", "detect", *files, "--machines", "4", "-o", str(output)]) == 0
    assert [axis.size for axis in load_profile(str(output)).axes] == [4, 8]
    assert re.search(r"wrote .*mine.yaml, which extends h100-dgx", capsys.readouterr().out)
    assert main(["profiles", "detect", "--from", str(tmp_path / "none")]) == 2
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr("shardplan.extras.detect.here.texts_here", list)
    assert main(["profiles", "detect"]) == 2
    assert "nvidia-smi" in capsys.readouterr().err


def test_cards_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for card in ("mlx5_0", "mlx5_1"):
        folder = tmp_path / "infiniband" / card / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert machine_of(texts_here(str(tmp_path / "infiniband"))).nic_gbit == (400, 400)
    assert texts_here(str(Path(tmp_path) / "none")) == []
