"""Laws of the simulation of one phase: what its docstring says of every program."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardplan.schedule.links import LinkLevels
from shardplan.schedule.streams import MOST_PASSING, Device, Item, simulate

LEVELS = ("up", "net")
EPS = 1e-9
seconds = st.floats(0.01, 10.0)
levels = st.sets(st.sampled_from(LEVELS), min_size=1).map(frozenset)


@st.composite
def programs(draw):
    """Items in any order; what is waited for, or has to come before, was issued."""
    program, issued = [Item("compute", "first", draw(seconds))], 0
    for number in range(draw(st.integers(1, 12))):
        action = draw(st.sampled_from(["compute", "compute", "blocking", "issue", "issue", "wait"]))
        if action == "compute":
            program.append(Item("compute", f"c{number}", draw(seconds)))
        elif action == "blocking":
            program.append(Item("blocking", f"b{number}", draw(seconds), draw(levels)))
        elif action == "issue":
            after = tuple(draw(st.sets(st.integers(0, issued - 1), max_size=2))) if issued else ()
            deferred = draw(st.booleans())
            program.append(Item("issue", f"i{number}", draw(seconds), draw(levels), issued, after, deferred))
            issued += 1
        elif issued:
            program.append(Item("wait", f"w{number}", number=draw(st.integers(0, issued - 1))))
    return program


kappas = st.sampled_from([1.0, 1.1, 2.0])
links = st.sampled_from([LinkLevels(LEVELS, (("up", "net", share),)) for share in (1.0, 0.6, 0.4, 0.1)])
LONGER = 1.0 / (1.0 - MOST_PASSING)
"""Times as long as by itself a collective may take beside one that passes."""


def spans_of(program, ran):
    """By index of the item: its span."""
    found = {span.item: span for span in ran.spans}
    assert len(found) == len(ran.spans)
    assert found.keys() == {index for index, item in enumerate(program) if item.action != "wait"}
    return found


def total(program, *actions):
    return sum(i.seconds for i in program if i.action in actions)


def lasting(program, spans, action):
    return sum(spans[index].end - spans[index].start for index, i in enumerate(program) if i.action == action)


@given(programs(), kappas, links)
def test_a_phase_computes_blocks_and_waits_and_nothing_else(program, kappa, links):
    ran = simulate(program, kappa, links)
    spans = spans_of(program, ran)
    length = {index: span.end - span.start for index, span in spans.items()}
    computed, blocked = (lasting(program, spans, action) for action in ("compute", "blocking"))
    assert ran.seconds == pytest.approx(computed + blocked + ran.waited)
    for index, item in enumerate(program):
        if item.action == "compute":
            assert item.seconds - EPS <= length[index] <= kappa * item.seconds + EPS
        elif item.action == "blocking":
            assert item.seconds - EPS <= length[index] <= LONGER * item.seconds + EPS
        elif item.action == "issue":
            assert length[index] >= item.seconds - EPS
            assert -EPS <= spans[index].exposed <= LONGER * item.seconds + EPS


@given(programs(), kappas, links)
def test_slow_compute_is_what_runs_beside_something(program, kappa, links):
    """What the overlap costs is (kappa - 1) / kappa of the time in which both run, and that is at most all traffic."""
    ran = simulate(program, kappa, links)
    blocked = lasting(program, spans_of(program, ran), "blocking")
    slower = ran.seconds - total(program, "compute") - blocked - ran.waited
    beside = slower * kappa / (kappa - 1.0) if kappa > 1.0 else 0.0
    assert -EPS <= beside <= min(kappa * total(program, "compute"), LONGER * total(program, "issue")) + EPS


@given(programs(), kappas, links)
def test_a_phase_takes_at_least_the_traffic_of_every_link(program, kappa, links):
    ran = simulate(program, kappa, links)
    for level in LEVELS:
        assert ran.seconds >= sum(links.share(level, i.levels) * i.seconds for i in program if i.levels) - EPS
    assert ran.seconds >= total(program, "compute", "blocking") - EPS
    assert ran.seconds <= kappa * total(program, "compute") + LONGER * total(program, "blocking", "issue") + EPS


@given(programs(), kappas, links)
def test_nothing_runs_at_full_speed_twice_on_one_link(program, kappa, links):
    """What begins and ends within any stretch of time takes no more of a link than that stretch has."""
    spans = spans_of(program, simulate(program, kappa, links))
    for level in LEVELS:
        sent = [
            (spans[i], links.share(level, item.levels) * item.seconds)
            for i, item in enumerate(program)
            if level in item.levels
        ]
        for begin, end in itertools.product((one.start for one, _ in sent), (one.end for one, _ in sent)):
            inside = sum(each for one, each in sent if begin - EPS <= one.start and one.end <= end + EPS)
            assert inside <= max(0.0, end - begin) + EPS


@given(programs(), kappas, links)
def test_the_program_runs_in_order_and_waits_where_it_says(program, kappa, links):
    ran = simulate(program, kappa, links)
    spans = spans_of(program, ran)
    number = {item.number: index for index, item in enumerate(program) if item.action == "issue"}
    now = 0.0
    for index, item in enumerate(program):
        if item.action in ("compute", "blocking"):
            assert spans[index].start >= now - EPS
            now = spans[index].end
        elif item.action == "issue":
            assert spans[index].start >= now - EPS
            for before in item.after:
                assert spans[index].start >= spans[number[before]].end - EPS
        else:
            now = max(now, spans[number[item.number]].end)
    assert ran.seconds == pytest.approx(max([now, *(span.end for span in spans.values())]))


@given(programs(), kappas, st.integers(0, 11), st.floats(1.0, 3.0))
def test_slower_compute_or_blocking_makes_no_phase_shorter(program, kappa, index, times):
    """One stream: where no collective comes before another, more to do is never sooner done."""
    plain = [i if i.action != "issue" else Item("issue", i.name, i.seconds, i.levels, i.number) for i in program]
    one = [i if not i.levels else Item(i.action, i.name, i.seconds, frozenset({"net"}), i.number) for i in plain]
    item = one[index % len(one)]
    longer = Item(item.action, item.name, times * item.seconds, item.levels, item.number)
    changed = [*one[: index % len(one)], longer, *one[index % len(one) + 1 :]]
    assert simulate(changed, kappa).seconds >= simulate(one, kappa).seconds - EPS


def test_what_was_not_issued_cannot_be_awaited():
    with pytest.raises(ValueError, match="which it has not issued"):
        simulate([Item("wait", "w", number=0)])


def test_a_deferred_collective_gives_way():
    """A weight that is waited for goes before a gradient that was issued first, which then goes on."""
    net = frozenset({"net"})
    program = [
        Item("issue", "gradient", 4.0, net, 0, deferred=True),
        Item("compute", "a", 1.0),
        Item("issue", "weight", 2.0, net, 1),
        Item("wait", "weight", number=1),
        Item("compute", "b", 1.0),
    ]
    ran = simulate(program)
    ends = {span.item: span.end for span in ran.spans}
    assert (ends[2], ends[4], ends[0]) == (3.0, 4.0, 6.0)
    assert (ran.seconds, ran.waited) == (6.0, 4.0)


@pytest.mark.parametrize(
    ("share", "blocked", "sent"), [(1.0, 1.0, 5.0), (0.6, 1.0, 5.0), (0.4, 1 / 0.6, 4.0), (0.0, 1.0, 4.0)]
)
def test_a_collective_over_machines_passes_the_links_inside_of_them(share, blocked, sent):
    """What blocks inside has what is left of the link; or all of it where more than half would be taken."""
    program = [
        Item("issue", "gradient", 4.0, frozenset(LEVELS), 0, deferred=True),
        Item("blocking", "activation", 1.0, frozenset({"up"})),
    ]
    ran = simulate(program, 1.0, LinkLevels(LEVELS, (("up", "net", share),)))
    ends = {span.item: span.end for span in ran.spans}
    assert (ends[1], ends[0]) == (pytest.approx(blocked), pytest.approx(sent))


def test_what_waits_for_one_link_leaves_the_others():
    """The first gradient waits for the link inside; the second, which needs none of that, is sent meanwhile."""
    program = [
        Item("issue", "over both", 4.0, frozenset(LEVELS), 0, deferred=True),
        Item("issue", "over machines", 1.0, frozenset({"net"}), 1, deferred=True),
        Item("blocking", "activation", 1.0, frozenset({"up"})),
    ]
    ends = {span.item: span.end for span in simulate(program).spans}
    assert (ends[2], ends[1], ends[0]) == (1.0, 1.0, 5.0)


@pytest.mark.parametrize(("sent", "expected"), [(0.0, 4.0), (1.1, 4.1), (8.0, 8.0)])
def test_compute_is_slower_only_beside_communication(sent, expected):
    """4 s of compute, and kappa 1.1: 1.1 s beside communication do 1 s of it; 8 s outlast 4.4 s of it."""
    program = [Item("issue", "weight", sent, frozenset({"net"}), 0), Item("compute", "a", 4.0)]
    assert simulate(program, 1.1).seconds == pytest.approx(expected)


class Anew(dict):
    """Remembers nothing."""

    def __contains__(self, _):
        return False


@given(programs(), kappas, links)
def test_what_runs_is_found_again_whenever_the_queue_changes(program, kappa, links):
    device = Device(program, kappa, links)
    device.beside = Anew()
    assert device.run() == simulate(program, kappa, links)
