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
        ("NVIDIA B300 SXM6 AC", 275040, "NV18", "b300-dgx", 900),
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


WIDTHS = "name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.max"


def groups(count, size, link):
    """`topo -m` of GPUs of which `size` consecutive ones are joined by NVLink."""
    ways = [["X" if i == j else link if i // size == j // size else "SYS" for j in range(count)] for i in range(count)]
    return "\n".join(["\t".join(["", *(f"GPU{i}" for i in range(count))]),
                      *("\t".join([f"GPU{i}", *row]) for i, row in enumerate(ways))])  # fmt: skip


@pytest.mark.parametrize(("count", "size", "link"), [(4, 2, "NV12"), (8, 2, "NV12"), (8, 4, "NV4")])
def test_groups_that_nvlink_joins_are_a_level_of_their_own(tmp_path, count, size, link):
    sizes = query("NVIDIA A100-SXM4-80GB", 81920, count, WIDTHS).replace(" MiB\n", " MiB, 4, 16\n")
    loaded, found = profile(tmp_path, groups(count, size, link), sizes)
    assert [(level.name, level.devices, level.link_bytes_per_s) for level in loaded.levels[:2]] == [
        ("up", size, 300e9),
        ("pcie", count, 31e9),
    ]
    assert [(axis.name, axis.size) for axis in loaded.axes] == [("machine", 1), ("group", count // size), ("gpu", size)]
    assert "how much of 31 GB/s PCIe reaches" in [each.summary for each in found.unknown]


def test_groups_of_which_nobody_says_how_fast_pcie_is_keep_the_links_of_the_shipped_profile(tmp_path):
    loaded, found = profile(tmp_path, groups(8, 4, "NV4"), query("NVIDIA A100-SXM4-80GB", 81920, 8))
    assert [level.name for level in loaded.levels] == ["up", "net"]
    assert "link_gbps" not in found.text
    assert "pcie.link.gen.max" in found.unknown[-1].hint


@pytest.mark.parametrize(
    ("kind", "mib", "link", "pair"), [("A100-SXM4-80GB", 81920, "NV4", 100), ("H100 80GB HBM3", 81559, "NV6", 150)]
)
def test_few_links_of_a_pair_are_all_that_joins_it(tmp_path, kind, mib, link, pair):
    """Four GPUs without a switch divide their links among the others."""
    loaded, _ = profile(tmp_path, topology(4, link), query(f"NVIDIA {kind}", mib, 4))
    level = loaded.levels[0]
    assert (level.topology, level.pair_bytes_per_s, level.link_bytes_per_s) == ("full_mesh", pair * 1e9, 3e9 * pair)
    assert not level.nvls


def test_columns_in_another_order_and_no_head(tmp_path):
    _, found = profile(tmp_path, "0, 81559 MiB, NVIDIA H100 80GB HBM3\n1, 81559 MiB, NVIDIA H100 80GB HBM3\n")
    assert found.base == "h100-dgx"
    assert "{name: gpu, size: 2" in found.text


def test_slurm_alone_says_little(tmp_path):
    loaded, found = profile(tmp_path, SCONTROL)
    assert [axis.size for axis in loaded.axes] == [2, 8]
    assert any("how much memory" in each.summary for each in found.unknown)


def test_a_line_of_a_configuration_names_many_nodes():
    assert machine_of([("slurm.conf", "NodeName=node[01-12,20] Gres=gpu:h100:8 CPUs=96\n")]).machines == 13


def test_nodes_without_gpus_do_not_count():
    """A description of a whole partition has login nodes, too."""
    more = SCONTROL + "NodeName=login Arch=x86_64\n   Gres=(null)\n   State=IDLE\n"
    assert machine_of([("nodes", more)]).machines == 2


HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" gp_index="1"><info name="Backend" value="Linux"/>
    <object type="OSDev" gp_index="20" name="eth0" osdev_type="2"/>
    {devices}
  </object>
</topology>"""


def hwloc(*kinds, kib=83201024):
    """`lstopo --of xml` of a machine with GPUs of these kinds, each beside a card."""
    devices, memory = [], f'<info name="CUDAGlobalMemorySize" value="{kib}"/>'
    for i, kind in enumerate(kinds):
        model = f'<info name="GPUVendor" value="NVIDIA Corporation"/><info name="GPUModel" value="{kind}"/>'
        devices += [
            f'<object type="OSDev" name="cuda{i}" subtype="CUDA" osdev_type="5">{model}{memory}</object>',
            f'<object type="OSDev" gp_index="{i}1" name="nvml{i}" subtype="NVML" osdev_type="1">{model}</object>',
            f'<object type="OSDev" gp_index="{i}2" name="mlx5_{i}" osdev_type="3"/>',
        ]
    return HWLOC.format(devices="\n".join(devices))


IBSTAT = "CA '{name}'\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: {state}\n\t\tRate: {rate}\n"


def test_ports_that_are_down_carry_nothing(tmp_path):
    cards = [("mlx5_0", "Active", 400), ("mlx5_1", "Down", 40), ("mlx5_2", "Active", 400)]
    said = "".join(IBSTAT.format(name=name, state=state, rate=rate) for name, state, rate in cards)
    found = machine_of([("topo", topology(4, "NV18", cards=3)), ("ibstat", said)])
    assert (found.nic_gbit, found.down_nics) == ((400, 400), 1)
    for name, state, rate in cards:
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{4 if state == 'Active' else 1}: {state.upper()}\n")
        (port / "rate").write_text(f"{rate} Gb/sec (4X NDR)\n")
    assert machine_of(texts_here(str(tmp_path))).nic_gbit == (400, 400)


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["hello"], "unread-capture"),
        ([H100, topology(8, "NV18")[:300]], "unread-capture"),
        ([hwloc("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")[:-15]], "unread-capture"),
        (
            ["==== ROCm System Management Interface ====\n       GPU0  GPU1\nGPU0   0  XGMI\nGPU1   XGMI 0\n"],
            "unread-capture",
        ),
        (
            ["GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-e9)\n  MIG 3g.20gb     Device  0: (UUID: MIG-x)\n"],
            "divided-device",
        ),
        ([H100, "mig.mode.current\n" + "Disabled\n" * 7 + "Enabled\n"], "divided-device"),
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


def test_a_row_that_ends_early_is_named():
    torn = "\tGPU0\tGPU1\tNIC0\tNIC1\nGPU0\tX\tNV18\tPIX\tSYS\nGPU1\tNV18\tX\tPIX\n"
    with pytest.raises(ShardplanError) as raised:
        machine_of([("topo.txt", torn)])
    assert str(raised.value) == (
        "topo.txt: error[unread-capture]: the end is missing: the row of GPU1 has 3 of 4 columns"
    )


def test_whole_devices_and_ports_that_are_down_are_known_texts():
    found = machine_of([("modes", "mig.mode.current\n" + "[N/A]\n" * 8), ("query", H100), ("ports", IBSTAT.format(
        name="mlx5_0", state="Down", rate=40))])  # fmt: skip
    assert (found.devices, found.nic_gbit, found.down_nics) == (8, (), 1)


def test_the_verb(tmp_path, capsys, monkeypatch):
    for name, text in (("topo", topology(8, "NV18")), ("query", H100)):
        (tmp_path / name).write_text(text)
    files = ["--from", str(tmp_path / "topo"), "--from", str(tmp_path / "query")]
    output = tmp_path / "mine.yaml"
    for _ in range(2):
        assert main(["profiles", "detect", *files, "--machines", "4", "-o", str(output)]) == 0
    assert [axis.size for axis in load_profile(str(output)).axes] == [4, 8]
    assert re.search(r"wrote .*mine.yaml, which extends h100-dgx", capsys.readouterr().out)
    output.write_text("hello\n")
    assert main(["profiles", "detect", *files, "-o", str(output)]) == 2
    assert "error[output-not-a-profile]: this file exists and is not a profile" in capsys.readouterr().err
    assert output.read_text() == "hello\n"
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


def test_ports_that_cannot_be_read_are_left_out(tmp_path, monkeypatch):
    """As of a card that is being reset."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for card, rate in {"mlx5_0": b"\xff\xfe", "mlx5_1": b"400 Gb/sec (4X NDR)\n", "mlx5_2": b""}.items():
        folder = tmp_path / "cards" / card / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "rate").write_bytes(rate)
        (folder / "state").write_text("4: ACTIVE\n")
    (tmp_path / "cards" / "mlx5_2" / "ports" / "1" / "rate").unlink()
    (tmp_path / "cards" / "mlx5_2" / "ports" / "1" / "rate").mkdir()
    ((_, text),) = texts_here(str(tmp_path / "cards"))
    assert text == "4: ACTIVE\n400 Gb/sec (4X NDR)\n"
    (tmp_path / "cards" / "mlx5_1" / "ports" / "1" / "rate").write_bytes(b"\xff")
    assert texts_here(str(tmp_path / "cards")) == []


def dgx(links, cards):
    """`topo -m` of eight GPUs joined by `links`; `cards`: for every network card, the ways to the GPUs."""
    names = [f"GPU{i}" for i in range(8)] + [f"NIC{i}" for i in range(len(cards))]
    rows = [
        "\t".join([f"GPU{i}", *("X" if i == j else links for j in range(8)), *(card[i] for card in cards), "0-55", "0"])
        for i in range(8)
    ]
    return "\n".join(["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"]), *rows])


BESIDE = [["PXB" if i == j else "NODE" if i // 4 == j // 4 else "SYS" for i in range(8)] for j in range(8)]
STORAGE = ["NODE"] * 4 + ["SYS"] * 4


def test_cards_that_no_gpu_is_beside_carry_nothing(tmp_path):
    """A DGX has cards for storage and management: they are slower, or as fast, or missing among the rates."""
    matrix = dgx("NV18", [STORAGE, *BESIDE, STORAGE])
    for rates in ("100 Gb/sec (4X EDR)\n" + RATES + "100 Gb/sec (4X EDR)\n", RATES + RATES[: len(RATES) // 4], RATES):
        loaded, found = profile(tmp_path, matrix, H100, rates, SCONTROL)
        assert loaded.levels[-1].node_bytes_per_s == 8 * 400e9 / 8
        assert [each.summary for each in found.unknown] == [
            "what 2 of 10 network cards are for: none is beside a GPU, and they are left out"
        ]
        assert "environment" not in loaded.resolved
    with pytest.raises(ShardplanError) as raised:
        profile(tmp_path, matrix, H100, RATES * 2, SCONTROL)
    assert raised.value.diagnostics[0].summary == "nics: 16 rates, and another text says 10"
    legend = "".join(f"  NIC{number}: mlx5_{number + 2}\n" for number in range(10))
    loaded, _ = profile(tmp_path, f"{matrix}\n\nNIC Legend:\n\n{legend}", H100, RATES, SCONTROL)
    assert loaded.resolved["environment"] == {
        "NCCL_IB_HCA": "=" + ",".join(f"mlx5_{number}" for number in range(3, 11))
    }


def test_what_hwloc_says(tmp_path):
    loaded, found = profile(tmp_path, hwloc(*["NVIDIA A100-SXM4-80GB"] * 8), topology(8, "NV12", cards=8), RATES)
    assert found.base == "a100-dgx"
    assert [axis.size for axis in loaded.axes] == [1, 8]
    assert [each.summary for each in found.unknown] == ["how many machines there are"]
    with pytest.raises(ShardplanError, match="GPUs of several kinds, NVIDIA A100-SXM4-80GB, NVIDIA L40S"):
        profile(tmp_path, hwloc("NVIDIA A100-SXM4-80GB", "NVIDIA L40S"))
    with pytest.raises(ShardplanError, match="nothing says what the devices are"):
        profile(tmp_path, HWLOC.format(devices=""))


def test_a_card_is_no_module(tmp_path):
    """What is kept of a profile with SXM modules is said; a name without a chip in it is no device of a profile."""
    found = profile(tmp_path, query("NVIDIA A100 80GB PCIe", 81920, 4))[1]
    assert "how fast a PCIe card is: a100-dgx has A100-SXM4-80GB" in [each.summary for each in found.unknown]
    with pytest.raises(ShardplanError, match="no shipped profile has the device 'NVIDIA Graphics Device'"):
        profile(tmp_path, query("NVIDIA Graphics Device", 81920, 8))
