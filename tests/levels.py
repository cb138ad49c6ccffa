"""The three levels of the suite, and one share of a sharded run.

Without an option each test runs, in its short form. ``--deep`` runs the full form: all
cases, rounds, stages and transports. ``--fast`` leaves out the folders and marks below,
which need other processes, a browser, a moved clock, or minutes. A test asks `size`,
`sample` or `examples` for its numbers, so the levels share the code of the tests.
``--shard 2/4`` keeps the second quarter of the test files, by a hash of their names.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent

SLOW_PATHS = frozenset(
    {
        *(
            "apart",
            "attacks",
            "bench",
            "browser",
            "chaos",
            "clock",
            "conformance",
            "docs",
        ),
        "races",
        "resume",
        "sandbox/page",
        "api/test_fuzz.py",
        "api/test_raw_sockets.py",
        "bot/cards/test_card_properties.py",
        "bot/listeners/test_ask_requester.py",
        "bot/modals/test_form_round_trip.py",
        "bot/modals/test_modal_properties.py",
        "bot/test_half_open.py",
        "bot/test_lookup_failures.py",
        "bot/test_moved_channels.py",
        "bot/test_personal_copies.py",
        "linearizability/test_recorded.py",
        "stories/test_killed_in_the_middle.py",
    }
)
SLOW_MARKS = frozenset({"browser", "slow"})

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - folders in it are made by tempfile
ROOM_BYTES = 4 * 1024**3
FAST_EXAMPLES = 10
"""Examples of each property in the fast level."""

SHORT_SHARE = 4
"""Without an option, a property gets a quarter of the examples of its full form."""

DEEP_TIMEOUT_S = 3600

DEEP_MARK = "deep"
"""Marks a test that only a deep run plays."""

Case = TypeVar("Case")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose the tests."""
    group = parser.getgroup("keyturn", "which tests run")
    group.addoption("--fast", action="store_true", help="Leave out slow tests.")
    group.addoption("--deep", action="store_true", help="Run tests in their full form.")
    group.addoption("--shard", metavar="K/N", help="Run one share of the test files.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave slow paths and other shards' files unread: importing takes time, too."""
    if config.getoption("--fast") and collection_path.is_relative_to(ROOT):
        return collection_path.relative_to(ROOT).as_posix() in SLOW_PATHS or None
    shard = config.getoption("--shard")
    if shard and collection_path.is_file():
        return not in_shard(collection_path, shard) or None
    return None


def in_shard(path: Path, shard: str) -> bool:
    """Return whether a shard such as ``2/4`` has a test file."""
    number, count = (int(part) for part in shard.split("/"))
    if not 1 <= number <= count:
        raise pytest.UsageError(f"--shard {shard}: write K/N, such as 2/4.")
    name = path.relative_to(ROOT).as_posix()
    return crc32(name.encode()) % count == number - 1


def memory_folder() -> str | None:
    """Return a folder in memory for what tests write, None where there is none.

    Each write to the store and to SQLite waits until the disk has it: milliseconds on
    a disk, thousands of times. Tests end processes, never the machine, so what a
    process wrote is as safe in memory. Programs are started there and environments
    filled, so it needs room and the right to run programs; in a container it often
    has neither.
    """
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    has_room = found.f_bavail * found.f_frsize >= ROOM_BYTES
    may_run = not found.f_flag & os.ST_NOEXEC
    may_write = os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
    return SHARED_MEMORY if has_room and may_run and may_write else None


def pytest_configure(config: pytest.Config) -> None:
    """Choose where temporary files are; load the profile of the property tests."""
    # Other processes of tests, and the programs that tests start, inherit it.
    if "TMPDIR" not in os.environ and (folder := memory_folder()):
        os.environ["TMPDIR"] = tempfile.tempdir = folder
    # The time of an example depends on the machine and not on the code; performance is
    # measured in bench/.
    settings.register_profile("deep", deadline=None)
    settings.register_profile("short", deadline=None, max_examples=100 // SHORT_SHARE)
    settings.register_profile("fast", deadline=None, max_examples=FAST_EXAMPLES)
    level = next(
        (it for it in ("deep", "fast") if config.getoption(f"--{it}")), "short"
    )
    settings.load_profile(level)


def is_deep() -> bool:
    """Return True if the tests run in their full form."""
    return settings.get_current_profile_name() == "deep"


def size(*, deep: int, short: int) -> int:
    """Return how often, how long or how large a test plays in this run."""
    return deep if is_deep() else short


def sample(cases: Iterable[Case], count: int) -> list[Case]:
    """Return all cases in a deep run, else `count` of them, evenly spread."""
    every = list(cases)
    if is_deep() or len(every) <= count:
        return every
    return [every[place * len(every) // count] for place in range(count)]


def examples(count: int) -> int:
    """Return how many examples a property gets that takes `count` in a deep run."""
    if settings.get_current_profile_name() == "fast":
        return FAST_EXAMPLES
    return size(deep=count, short=max(FAST_EXAMPLES, count // SHORT_SHARE))


def run_each_way(
    metafunc: pytest.Metafunc,
    fixture: str,
    ways: Sequence[str],
    *,
    only_deep: bool = False,
) -> None:
    """Run tests with a fixture in each way; in the fast level, in one way each.

    The way depends on the test's name, so that half of the tests take the other one.
    With `only_deep`, only a deep run takes each way.
    """
    if fixture not in metafunc.fixturenames:
        return
    if metafunc.config.getoption("--fast") or (only_deep and not is_deep()):
        place = crc32(metafunc.function.__name__.encode()) % len(ways)
        ways = [ways[place]]
    metafunc.parametrize(fixture, ways, indirect=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of several nodes on one kind of server; on both in a deep run."""
    if "server_program" in metafunc.fixturenames:
        kinds = sample(["valkey", "redis"], 1)
        metafunc.parametrize("server_program", kinds, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Move slow tests to the front, in their random order, or omit them.

    If a slow test were the last one, the other processes would wait for it.
    """
    if config.getoption("--deep"):
        for item in items:
            item.add_marker(pytest.mark.timeout(DEEP_TIMEOUT_S), append=False)
    else:
        deep = [item for item in items if item.get_closest_marker(DEEP_MARK)]
        config.hook.pytest_deselected(items=deep)
        items[:] = [item for item in items if item not in {*deep}]
    slow = {item for item in items if is_slow(item)}
    quick = [item for item in items if item not in slow]
    if not config.getoption("--fast"):
        items[:] = [item for item in items if item in slow] + quick
    elif slow:
        config.hook.pytest_deselected(items=[*slow])
        items[:] = quick


def is_slow(item: pytest.Item) -> bool:
    """Return whether a test is not in the fast level."""
    marks = {mark.name for mark in item.iter_markers()}
    return bool(SLOW_MARKS & marks) or in_slow_place(item.path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no unreachable objects while tests are loaded: nearly all are kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude all loaded objects from later garbage collections."""
    gc.collect()
    gc.freeze()


@cache
def in_slow_place(path: Path) -> bool:
    """Return whether a file, or a folder above it, is listed as slow."""
    if not path.is_relative_to(ROOT):
        return False
    places = path.relative_to(ROOT)
    return any(one.as_posix() in SLOW_PATHS for one in (places, *places.parents))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape lone surrogates in a report.

    pytest-xdist sends reports as UTF-8 and ends the whole run where one cannot be
    encoded. Tests of hostile payloads log such text on purpose.
    """
    return escaped((yield))


def escaped(value: Any) -> Any:
    """Return the value with each lone surrogate written as its escape sequence."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return dict(escaped(list(value.items())))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if isinstance(value, list):
        return [escaped(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple):
        return tuple(escaped(list(value)))  # pyright: ignore[reportUnknownArgumentType]
    return value
