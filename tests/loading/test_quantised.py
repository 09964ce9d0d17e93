"""One quantised checkpoint serves plans for 2, 4 and 8 ranks: only the plan changes."""

import numpy as np
import pytest
from safetensors_files import write_safetensors
from small_plans import plan_of

from shardplan.errors import ShardplanError
from shardplan.layout.layout import Layout
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import S
from shardplan.loading.assign import assign
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.load import load_rank, renumber
from shardplan.loading.presharded import load_presharded
from shardplan.loading.split import split

OUT, IN, GROUP = 128, 512, 64
RNG = np.random.default_rng(2)


def gptq(name, order=None):
    """4-bit tensors of one weight; `order`: the group of every row."""
    groups = np.arange(IN) // GROUP if order is None else order
    return {
        f"{name}.qweight": RNG.integers(-(2**31), 2**31, (IN // 8, OUT)).astype(np.int32),
        f"{name}.qzeros": RNG.integers(-(2**31), 2**31, (IN // GROUP, OUT // 8)).astype(np.int32),
        f"{name}.scales": RNG.standard_normal((IN // GROUP, OUT)).astype(np.float16),
        f"{name}.g_idx": groups.astype(np.int32),
    }


def dequantised(tensors, name):
    """The weight [in, out]."""
    bits = np.arange(0, 32, 4, dtype=np.uint32)
    values = (tensors[f"{name}.qweight"].view(np.uint32)[:, None, :] >> bits[:, None]) & 15
    values = values.reshape(-1, values.shape[-1]).astype(np.float32)
    zeros = (tensors[f"{name}.qzeros"].view(np.uint32)[..., None] >> bits) & 15
    groups = tensors[f"{name}.g_idx"]
    zeros = zeros.reshape(len(zeros), -1)[groups].astype(np.float32)
    return (values - zeros) * tensors[f"{name}.scales"].astype(np.float32)[groups]


def plan_for(ways):
    columns, rows = Layout.of(S(0)), Layout.of(S(1))
    return plan_of(Mesh.of(tp=ways), {"up.weight": ((OUT, IN), columns, (1, 0)), "down.weight": ((OUT, IN), rows)})


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_the_same_checkpoint_for_every_number_of_ranks(tmp_path, ways):
    stored = {**gptq("up"), **gptq("down")}
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "m.safetensors", stored))
    plan = plan_for(ways)
    assignment = assign(plan, checkpoint)
    assert not assignment.warnings
    split(assignment, tmp_path / "out")
    for rank in range(ways):
        loaded = {name: tensor.array for name, tensor in load_rank(checkpoint, plan, rank).items()}
        presharded = {name: tensor.array for name, tensor in load_presharded(tmp_path / "out", rank).items()}
        assert all(array.tobytes() == presharded[name].tobytes() for name, array in loaded.items())
        assert all(array.shape == presharded[name].shape for name, array in loaded.items())
        step = OUT // ways
        up, down = dequantised(loaded, "up"), dequantised(loaded, "down")
        assert up.tobytes() == dequantised(stored, "up")[:, rank * step : (rank + 1) * step].tobytes()
        step = IN // ways
        assert down.tobytes() == dequantised(stored, "down")[rank * step : (rank + 1) * step].tobytes()


def test_act_order_forbids_to_cut_groups(tmp_path):
    stored = {**gptq("up"), **gptq("down", RNG.permutation(np.arange(IN) // GROUP))}
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "m.safetensors", stored))
    for act in (
        lambda: load_rank(checkpoint, plan_for(2), 0),
        lambda: split(assign(plan_for(2), checkpoint), tmp_path / "out"),
    ):
        with pytest.raises(ShardplanError) as caught:
            act()
        assert str(caught.value) == (
            "error[act-order]: 'down.g_idx': rows of this weight were quantised in another order (act-order), so "
            "groups cannot be cut\n"
            "hint: keep the input dim of this weight whole (--pin), or quantise with desc_act=False"
        )


def test_groups_of_several_runs_are_numbered_in_the_order_of_the_rank():
    """A fused input dim leaves a rank with groups 1, 2 and 6."""
    values = np.array([1, 1, 2, 6, 6], np.int32)
    assert renumber(values, ((1, 3), (6, 7)), "g_idx").tolist() == [0, 0, 1, 2, 2]


def test_a_plan_that_cuts_groups_is_refused_with_remedies(tmp_path):
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "m.safetensors", {**gptq("up"), **gptq("down")}))
    plan = plan_for(16)
    with pytest.raises(ShardplanError) as caught:
        split(assign(plan, checkpoint), tmp_path / "out")
    assert str(caught.value) == (
        "error[cut-group]: 'down.weight': 32 of 512 along its input dim per device would cut a group of 64 quantised "
        "values\n"
        "  down.scales [8, 128] holds 64 in 1\n"
        "hint: shard it over fewer devices (8 or a divisor of the 8 groups), or quantise with groups of 32 or fewer"
    )
    assert not (tmp_path / "out").exists()


def test_every_rank_holds_its_share(tmp_path):
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "m.safetensors", {**gptq("up"), **gptq("down")}))
    parts = assign(plan_for(8), checkpoint).parts(3)
    held = sum(part.size_bytes for part in parts)
    assert held < sum(entry.size_bytes for entry in checkpoint) / 6
