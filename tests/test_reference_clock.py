"""A remote clock is known between two readings, despite changes of ours."""

from __future__ import annotations

import pytest

from keyturn.gateway.clock import ReferenceClock, offset_sentence


class Machine:
    """A machine whose wall clock is set, and whose other one is not."""

    def __init__(self) -> None:
        self.wall_s, self.elapsed_s = 1_000_000.0, 50.0

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds
        self.elapsed_s += seconds

    def clock(self) -> ReferenceClock:
        return ReferenceClock(
            elapsed_s=lambda: self.elapsed_s, wall_s=lambda: self.wall_s
        )


def test_it_goes_on_while_ours_is_set() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.now_s() == machine.wall_s, "nothing else is known yet"
    assert clock.offset_s == 0
    clock.answered(1_000_000.0, clock.asking())

    machine.wait(10)
    machine.wall_s += 7200

    assert clock.now_s() == 1_000_010.0
    assert clock.offset_s == 7200
    machine.wall_s -= 14400
    assert clock.offset_s == -7200


def test_what_people_cannot_see_is_no_offset() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.answered(machine.wall_s - 4.9, clock.asking())
    assert clock.offset_s == 0
    clock.answered(machine.wall_s - 5.1, clock.asking())
    assert clock.offset_s == pytest.approx(5.1)


def test_an_answer_that_took_long_says_little() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.answered(machine.wall_s, clock.asking())
    asked_s = clock.asking()
    machine.wait(20)

    # Made at once, and held up for 20 seconds on its way.
    clock.answered(machine.wall_s - 20, asked_s)

    assert clock.now_s() == machine.wall_s
    assert clock.offset_s == 0


@pytest.mark.parametrize("later_s", [0, 60])
def test_a_first_answer_that_took_long_only_bounds_the_time(later_s: int) -> None:
    machine = Machine()
    clock = machine.clock()
    asked_s = clock.asking()
    machine.wait(60)

    # Made at its end, or at its beginning: the middle is half a minute wrong.
    clock.answered(machine.wall_s - later_s, asked_s)

    assert clock.now_s() == machine.wall_s
    assert clock.offset_s == 0
    machine.wait(10)
    assert clock.now_s() == machine.wall_s


def test_a_clock_outside_of_a_first_answer_that_took_long_is_wrong() -> None:
    machine = Machine()
    clock = machine.clock()
    asked_s = clock.asking()
    machine.wait(60)

    clock.answered(machine.wall_s + 7200, asked_s)

    assert abs(clock.now_s() - machine.wall_s - 7200) <= 30
    assert abs(clock.offset_s + 7200) <= 30
    # The next answer is quicker, and the time is known.
    clock.answered(machine.wall_s + 7200, clock.asking())
    assert clock.offset_s == -7200


def test_where_all_answers_take_long_they_count_once_the_last_is_old() -> None:
    machine = Machine()
    clock = machine.clock()
    for set_by_s in (0, 7200):
        machine.wait(61)
        asked_s = clock.asking()
        machine.wait(8)
        clock.answered(machine.wall_s + set_by_s, asked_s)

    assert abs(clock.offset_s + 7200) < 5


def test_it_says_which_clock_is_wrong_and_what_to_do() -> None:
    assert offset_sentence("this machine", 7200.4, "the store's") == (
        "The clock of this machine is 7200 s ahead of the store's; set it by NTP."
    )
    assert "7200 s behind" in offset_sentence("the bot b:1", -7200, "the store's")
