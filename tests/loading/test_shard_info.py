"""Steps of loaders: TVM's own cases, our functions against each other, user functions, and everything refused."""

import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors_files import write_safetensors
from small_plans import plan_of

from shardplan.errors import ShardplanError
from shardplan.export.shard_info import export_shard_info
from shardplan.layout.layout import Layout
from shardplan.layout.legal import is_legal
from shardplan.layout.mesh import Mesh
from shardplan.layout.placement import R, S
from shardplan.loading.checkpoint import open_checkpoint
from shardplan.loading.load import load_rank
from shardplan.loading.ranged import Reader
from shardplan.loading.shard_info import ShardInfoLoader, parse_shard_info, read_shard_info, write_shard_info
from shardplan.loading.steps import Step, find_builtin, runs_after

RNG = np.random.default_rng(3)


def loader(tmp_path, arrays, info, ranks=2, **options):
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "m.safetensors", arrays))
    return ShardInfoLoader(checkpoint, parse_shard_info(json.dumps(info)), ranks, **options)


def test_tvm_one_dim(tmp_path):
    """apache/tvm, tests/python/disco/test_loader.py: x_0 in columns, x_1 in rows."""
    arrays = {
        "x_0": RNG.standard_normal((64, 128)).astype(np.float16),
        "x_1": RNG.standard_normal((32, 128)).astype(np.float32),
        "x_2": np.arange(3),
    }
    info = {
        "x_0": [["shard_dim_1", [[2, 64, 64], "float16"], 2]],
        "x_1": [["shard_dim_0", [[2, 16, 128], "float32"], 2]],
        "x_2": [],
    }
    loading = loader(tmp_path, arrays, info)
    for rank in range(2):
        found = {name: loading.load(name, rank).array for name in arrays}
        assert np.array_equal(found["x_0"], arrays["x_0"][:, 64 * rank : 64 * (rank + 1)])
        assert np.array_equal(found["x_1"], arrays["x_1"][16 * rank : 16 * (rank + 1)])
        assert found["x_2"].tolist() == [0, 1, 2]
    with Reader() as reader:
        loading.load("x_1", 1, reader)
        assert reader.read_bytes == 16 * 128 * 4  # its own rows only


def test_tvm_fused_attention(tmp_path):
    """Two steps, and one with segments: worker k holds its heads of q, of k and of v."""
    q_heads, kv_heads, head, hidden, n = 8, 2, 4, 6, 2
    heads = q_heads + 2 * kv_heads
    whole = RNG.standard_normal((heads * head, hidden)).astype(np.float16)
    shape = [n, heads // n * head, hidden]
    sizes = [q_heads * head, kv_heads * head, kv_heads * head]
    two = {
        "w": [
            ["shard_qkv_0", [[n, heads // n, head, hidden], "float16"], n, q_heads, kv_heads],
            ["shard_qkv_1", [shape, "float16"]],
        ]
    }
    one = {"w": [["shard_segments_0", [shape, "float16"], n, *sizes]]}
    ours = {
        "w": [["reorganise_dim_0", [list(whole.shape), "float16"], n, *sizes], ["shard_dim_0", [shape, "float16"], n]]
    }
    q, k, v = np.split(whole, np.cumsum(sizes)[:-1])
    for info in (two, one, ours):
        loading = loader(tmp_path, {"w": whole}, info)
        for rank in range(n):
            expected = np.concatenate([np.split(part, n)[rank] for part in (q, k, v)])
            assert loading.load("w", rank).array.tobytes() == expected.tobytes()


@st.composite
def layouts(draw):
    shape = tuple(draw(st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=3)))
    sizes = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2))
    mesh = Mesh.of(**{f"a{place}": size for place, size in enumerate(sizes)})
    options = [R, *(S(dim) for dim in range(len(shape))), S(0, (shape[0] // 2, shape[0] // 4, shape[0] // 4))]
    layout = Layout.of(*(draw(st.sampled_from(options)) for _ in sizes), order=draw(st.permutations(range(len(sizes)))))
    return mesh, shape, layout


@settings(max_examples=120)
@given(layouts())
def test_exported_steps_load_what_the_plan_says(tmp_path_factory, case):
    mesh, shape, layout = case
    if not is_legal(layout, mesh, shape):
        return
    plan = plan_of(mesh, {"w": (shape, layout)})
    exported = export_shard_info(plan)
    kinds = {bool(p.segments) for p in layout.placements if p.is_shard and p.dim == 0}
    assert bool(exported.refused) == (len(kinds) > 1)
    if exported.refused:
        return
    whole = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    path = write_safetensors(tmp_path_factory.mktemp("s") / "m.safetensors", {"w": whole})
    checkpoint = open_checkpoint(path)
    info = parse_shard_info(exported.text)
    loading = ShardInfoLoader(checkpoint, info, mesh.size)
    for rank in range(mesh.size):
        expected = load_rank(checkpoint, plan, rank)["w"].array
        assert np.array_equal(loading.load("w", rank).array, expected)
        array = whole
        for step in info.get("w", ()):
            array = find_builtin(step)(array)
            assert array.shape == step.shape
        assert np.array_equal(array[rank] if info else array, expected)
    assert write_shard_info(info) == exported.text


def test_functions_of_the_user(tmp_path):
    def interleave(array, ways):
        return np.stack([array[rank::ways] for rank in range(ways)])

    arrays = {"w": np.arange(8, dtype=np.float32)}
    info = {"w": [["mine.interleave", [[2, 4], "float32"], 2]]}
    loading = loader(tmp_path, arrays, info, functions={"mine.interleave": interleave})
    assert loading.load("w", 1).array.tolist() == [1, 3, 5, 7]
    numpy_function = {"w": [["numpy.negative", [[8], "float32"]], ["shard_dim_0", [[2, 4], "float32"], 2]]}
    loading = loader(tmp_path, arrays, numpy_function, modules=["numpy"])
    assert loading.load("w", 1).array.tolist() == [-4, -5, -6, -7]


def refusal(act):
    with pytest.raises(ShardplanError) as caught:
        act()
    return str(caught.value)


def test_every_fault_names_its_parameter(tmp_path):
    arrays = {name: np.zeros((8, 4), np.float32) for name in ("a", "b", "c")}
    info = {
        "a": [["shard_dim_0", [[4, 2, 4], "float32"], 4]],
        "b": [["shard_dim0", [[2, 4, 4], "float32"], 2]],
        "c": [["os.system", [[2, 4, 4], "float32"], 2]],
        "d": [["shard_dim_0", [[2, 4, 4], "float32"], 2]],
    }
    assert refusal(lambda: loader(tmp_path, arrays, info)) == (
        "error[wrong-rank-count]: 'a': step 'shard_dim_0' gives 4 shards for 2 ranks\n"
        "hint: export the steps again from the plan for this number of ranks\n"
        "error[unknown-function]: 'b': there is no function 'shard_dim0'\n"
        "hint: did you mean 'shard_dim_0'?\n"
        "error[unknown-function]: 'c': there is no function 'os.system'\n"
        "hint: to let it be imported, pass modules=['os']\n"
        "error[unknown-weight]: the checkpoint has no tensor 'd'"
    )


def test_results_are_what_is_declared(tmp_path):
    arrays = {"w": np.zeros((8, 4), np.float32)}
    cases = {
        "shard_dim_0 [2, 3, 4] float32 2": "gives [2, 4, 4] float32, but [2, 3, 4] float32 is declared",
        "shard_dim_0 [2, 4, 4] float16 2": "gives [2, 4, 4] float32, but [2, 4, 4] float16 is declared",
        "shard_dim_2 [2, 4, 4] float32 2": "failed: there is no dim 2 in a tensor of 2 dims",
        "shard_dim_0 [2, 4, 4] float32 3": "failed: 8 does not divide by 3",
        "shard_segments_0 [2, 4, 4] float32 2 4 2": "failed: the segments [4, 2] do not sum to the size of the dim",
        "shard_mesh [2, 4, 4] float32 1 2 1 0 1 0": "failed: the numbers [1, 2, 1, 0, 1, 0] do not describe a mesh",
    }
    assert "step 'shard_mesh' failed: the mesh has 1 device, and there is a rank 1" in refusal(
        lambda: loader(tmp_path, {"s": np.float32(1)}, {"s": [["shard_mesh", [[2], "float32"], 0]]}).load("s", 1)
    )
    for text, expected in cases.items():
        head, _, rest = text.partition(" [")
        shape, _, rest = rest.partition("] ")
        dtype, *numbers = rest.split()
        row = [head, [[int(size) for size in shape.split(", ")], dtype], *map(int, numbers)]
        assert f"error[bad-step]: 'w': step '{head}' {expected}" in refusal(
            lambda row=row: loader(tmp_path, arrays, {"w": [row]}).load("w", 0)
        )
    good = loader(tmp_path, arrays, {"w": [["shard_dim_0", [[2, 4, 4], "float32"], 2]]})
    assert "there is no rank 2: ranks are 0 to 1" in refusal(lambda: good.load("w", 2))
    assert "the checkpoint has no tensor 'v'" in refusal(lambda: good.load("v", 0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "this is not JSON"),
        ("[1]", "this is no table from parameters to steps"),
        ('{"w": 1}', "'w' has no list of steps"),
        ('{"w": [["f", [[2], "float33"]]]}', "'w': 'float33' is no type\nhint: did you mean 'float32'?"),
        ('{"w": [["f", [[-2], "float32"]]]}', "'w': [-2] is no shape"),
        ('{"w": [["f", [2, "float32"]]]}', 'is [function, [shape, dtype], numbers ...], found ["f", [2, "float32"]]'),
        ('{"w": [["f", [[2], "float32"], true]]}', "'w': a step is [function, [shape, dtype], numbers ...], found"),
    ],
)
def test_files_that_say_something_else(text, expected):
    assert f"shard_info.json: error[bad-shard-info]: {expected}".split("is [")[0] in refusal(
        lambda: parse_shard_info(text)
    )
    assert expected in refusal(lambda: parse_shard_info(text))


NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 8, -1, 1000, 10**12, -(10**30)])
FUNCTIONS = st.one_of(
    st.builds("{}_{}".format, st.sampled_from(["shard_dim", "reorganise_dim", "shard_segments"]), st.integers(0, 3)),
    st.sampled_from(["shard_mesh", "once", "reshape", "shard_qkv_0", "shard_qkv_1", "os.system", "shard_dim_-1", ""]),
)
STEPS = st.tuples(
    FUNCTIONS, st.tuples(st.lists(NUMBERS.filter(lambda n: n >= 0), max_size=4), st.just("float32")), st.lists(NUMBERS)
)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=3), st.sampled_from([(), (8,), (8, 4)]), st.sampled_from([1, 2, 4]))
def test_whatever_the_steps_are_they_load_what_they_declare_or_are_refused(tmp_path_factory, steps, shape, ranks):
    rows = [[function, declared, *numbers] for function, declared, numbers in steps]
    arrays = {"w": np.arange(math.prod(shape), dtype=np.float32).reshape(shape)}
    with contextlib.suppress(ShardplanError):
        found = loader(tmp_path_factory.mktemp("steps"), arrays, {"w": rows}, ranks).load("w", ranks - 1)
        assert found.array.shape == (tuple(rows[-1][1][0][1:]) if rows else shape)


def test_a_file_that_is_not_there(tmp_path):
    assert "error[unreadable-shard-info]: cannot read the steps: no such file or directory" in refusal(
        lambda: read_shard_info(tmp_path / "none.json")
    )


def test_what_cannot_be_said_as_runs_is_run():
    """A user's function, or a reshape first, takes the whole tensor."""
    cut = Step("shard_dim_0", (2, 4), "float32", (2,))
    assert runs_after([cut], (8,), 1) == (((4, 8),),)
    assert runs_after([Step("reshape", (8,), "float32"), cut], (4, 2), 1) is None
    assert runs_after([cut, Step("reshape", (2, 2, 2), "float32")], (8,), 1) is None
