"""Lists of machines, and host files of several programs."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.errors import ShardplanError
from shardplan.launch.hosts import host_names, read_host_file


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a,b", ("a", "b")),
        ("b, a ,", ("b", "a")),
        ("node[08-11]", ("node08", "node09", "node10", "node11")),
        ("n[1,3-4].x,10.0.0.1", ("n1.x", "n3.x", "n4.x", "10.0.0.1")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
    ],
)
def test_lists(text, hosts):
    assert host_names(text) == hosts


@given(st.text(max_size=20))
def test_a_name_that_passes_means_nothing_to_a_shell(text):
    names: tuple[str, ...] = ()
    with contextlib.suppress(ShardplanError):
        names = host_names(text)
    for name in names:
        assert name.isascii()
        assert name.replace(".", "").replace("-", "").replace("_", "").isalnum()
        assert name[0] not in "-."


@pytest.mark.parametrize(
    "text", ["a;id", "$(id)", "-oProxyCommand=id", "a b", "a\nb", "`id`", "n[4-1]", "n[1", "a'", "[]"]
)
def test_hostile_names_are_refused(text):
    with pytest.raises(ShardplanError, match=r"error\[bad-host\]"):
        host_names(text)


def test_a_list_of_more_machines_than_there_are_is_refused_at_once():
    with pytest.raises(ShardplanError, match="names 1,000,000,000,000 machines"):
        host_names("n[0-999999][0-999999]")
    with pytest.raises(ShardplanError, match="bad-host"):
        host_names("n[0-999999999]")


@pytest.mark.parametrize(
    "text", ["a slots=4\nb slots=4 max_slots=8\n", "# two\na:4\nb:8", "a\na\na\na\nb\nb\nb\nb", "a\r\n\r\nb"]
)
def test_host_files(tmp_path, text):
    path = tmp_path / "hosts"
    path.write_bytes(text.encode())
    assert read_host_file(str(path), 4) == ("a", "b")


def test_faults_of_a_host_file_are_said_together(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a slots=2\n$(id)\nb slots=4\n")
    with pytest.raises(ShardplanError) as caught:
        read_host_file(str(path), 4)
    hint = "hint: letters, digits, '.', '-' and '_', or an IPv4 address; node[01-04] stands for four"
    assert str(caught.value) == (
        f"{path}:1: error[few-slots]: host a has 2 slots, the plan places 4 devices on a machine\n"
        f"{path}:2: error[bad-host]: '$(id)' is no name of a machine\n{hint}"
    )


def test_machines_that_come_back_and_files_that_are_none(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a\nb\na\n")
    with pytest.raises(ShardplanError, match=r"machine 'a' is named 2 times"):
        read_host_file(str(path), 1)
    with pytest.raises(ShardplanError, match="cannot read the host file: No such file"):
        read_host_file(str(tmp_path / "none"), 1)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ShardplanError, match="it is not UTF-8 text"):
        read_host_file(str(path), 1)
