import pytest

from shardplan.cluster.quantity import GBIT, GBPS, MEGABYTES, MICROSECONDS, PLAIN, SIZE, TFLOPS, parse_quantity


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("40e9", SIZE, 40e9),
        ("80 GB", SIZE, 80e9),
        ("80GiB", SIZE, 80 * 2**30),
        ("1.5 GB", SIZE, 1.5e9),
        ("8", MEGABYTES, 8),
        ("8 MB", MEGABYTES, 8),
        ("0.008 GB", MEGABYTES, 8),
        ("450", GBPS, 450),
        ("450 GB/s", GBPS, 450),
        ("0.45 TB/s", GBPS, 450),
        ("400 Gb/s", GBPS, 50),
        ("400 Gbit/s", GBIT, 400),
        ("50 GB/s", GBIT, 400),
        ("4.5", MICROSECONDS, 4.5),
        ("4500 ns", MICROSECONDS, 4.5),
        ("0.0045ms", MICROSECONDS, 4.5),
        ("989", TFLOPS, 989),
        ("0.989 PFLOP/s", TFLOPS, 989),
        ("1979 TOPS", TFLOPS, 1979),
        (".9", PLAIN, 0.9),
        ("+1e-3", PLAIN, 1e-3),
    ],
)
def test_reads_what_people_write(text, dimension, value):
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("fast", GBPS, "expected a bandwidth such as 450 GB/s, found 'fast'"),
        ("3350 GB", GBPS, "expected the unit of a bandwidth such as 450 GB/s, found 'GB' in '3350 GB'"),
        ("80 GB/s", SIZE, "expected the unit of a size such as 80 GB, found 'GB/s' in '80 GB/s'"),
        ("4 us", PLAIN, "expected no unit, found 'us' in '4 us'"),
        ("12:30", PLAIN, "expected no unit, found ':30' in '12:30'"),
        ("1_000", PLAIN, "expected no unit, found '_000' in '1_000'"),
        ("0x10", SIZE, "expected the unit of a size such as 80 GB, found 'x10' in '0x10'"),
        ("nan", PLAIN, "expected a number such as 0.9, found 'nan'"),
        ("1e999", PLAIN, "expected a number such as 0.9, found '1e999'"),
        ("", SIZE, "expected a size such as 80 GB, found ''"),
    ],
)
def test_says_what_is_wrong(text, dimension, message):
    with pytest.raises(ValueError, match="expected") as caught:
        parse_quantity(text, dimension)
    assert str(caught.value) == message
