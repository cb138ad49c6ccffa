"""A process finds its signing keys, and the public keys of others."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.trust.key_folder import KeyFolder, Keyring, Role

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_process_makes_the_keys_of_its_roles_once(tmp_path: Path) -> None:
    bot = Keyring(tmp_path / "keys", makes=[Role.BOT])

    [made] = bot.make_missing(NOW)

    assert bot.make_missing(NOW) == ()
    assert bot.signing(Role.BOT).public == made
    assert bot.verifying(Role.GATEWAY) == ()
    with pytest.raises(SettingsError, match="keyturn keys create gateway"):
        bot.signing(Role.GATEWAY)


def test_processes_apart_know_each_other_by_the_settings(tmp_path: Path) -> None:
    [public] = Keyring(tmp_path / "one", makes=[Role.BOT]).make_missing(NOW)
    file = tmp_path / "keyturn.yml"
    file.write_text(f"keys: {{folder: other, bot: ['{public.text}']}}")

    gateway = Keyring.of(Settings.load(file, {}), Role.GATEWAY)
    gateway.make_missing(NOW)

    assert gateway.folder == tmp_path / "other"
    assert gateway.verifying(Role.BOT) == (public,)
    with pytest.raises(SettingsError, match="no key for 'bot'"):
        gateway.signing(Role.BOT)


@pytest.mark.parametrize("text", ["x", "keyturn/bot+00000000+AQ=="])
def test_a_key_that_is_none_does_not_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keyturn.yml"
    file.write_text(f"keys: {{bot: ['{text}']}}")

    with pytest.raises(SettingsError, match="keyturn keys list"):
        Keyring.of(Settings.load(file, {}))


def test_a_rotated_key_signs_within_a_second(tmp_path: Path, clock: Clock) -> None:
    keyring = Keyring(tmp_path, makes=[Role.BOT], clock=clock)
    [old] = keyring.make_missing(NOW)
    assert keyring.signing(Role.BOT).public == old

    new = KeyFolder(tmp_path, Role.BOT).rotate(NOW + timedelta(days=1))
    assert keyring.signing(Role.BOT).public == old
    assert keyring.verifying(Role.BOT) == (old,)
    assert keyring.verifying_now(Role.BOT) == (new, old)
    clock.s = 1.0
    assert keyring.signing(Role.BOT).public == new
    assert keyring.verifying(Role.BOT) == (new, old)

    KeyFolder(tmp_path, Role.BOT).retire(old.label, NOW + timedelta(days=2))
    clock.s = 2.0
    assert keyring.verifying(Role.BOT) == (new,)


def test_a_process_that_runs_survives_a_damaged_key(
    tmp_path: Path, clock: Clock
) -> None:
    keyring = Keyring(tmp_path, makes=[Role.BOT], clock=clock)
    [public] = keyring.make_missing(NOW)
    assert keyring.verifying(Role.BOT) == (public,)
    damaged = tmp_path / "bot" / "0.key.json"
    damaged.write_text("{")

    assert keyring.verifying_now(Role.BOT) == (public,)
    clock.s = 1.0
    assert keyring.signing(Role.BOT).public == public
    with pytest.raises(SettingsError, match="is damaged"):
        Keyring(tmp_path).verifying(Role.BOT)

    damaged.unlink()
    new = KeyFolder(tmp_path, Role.BOT).rotate(NOW + timedelta(days=1))
    clock.s = 2.0
    assert keyring.signing(Role.BOT).public == new


def test_of_many_first_starts_one_makes_the_key(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    made: list[object] = []

    def begin() -> None:
        keyring = Keyring(tmp_path, makes=[Role.BOT])
        start.wait()
        made.extend(keyring.make_missing(NOW))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 1
    assert len(KeyFolder(tmp_path, Role.BOT).listed()) == 1
