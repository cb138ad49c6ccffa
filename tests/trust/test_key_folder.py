"""A role's keys are made, replaced without a gap, and retired."""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from keyturn.gateway.config import Settings
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.public_keys import parse_public_key
from keyturn.gateway.trust.key_folder import (
    KeyFolder,
    Keyring,
    KeyState,
    Role,
    SigningKey,
)
from tests.synced_names import synced_names

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "keys", Role.GATEWAY)


def states(keys: KeyFolder) -> list[KeyState]:
    return [one.state for one in keys.listed()]


def test_the_first_key_signs(keys: KeyFolder) -> None:
    public = keys.create(NOW)

    signature = keys.signing_key().sign(b"text")

    assert public.has_signed(b"text", signature)
    assert keys.verifying() == (public,)
    with pytest.raises(SettingsError, match="keyturn keys rotate gateway"):
        keys.create(NOW)


def test_an_older_key_verifies_until_it_is_retired(keys: KeyFolder) -> None:
    old = keys.create(NOW)
    new = keys.rotate(NOW + timedelta(days=1))

    assert states(keys) == [KeyState.SIGNS, KeyState.VERIFIES]
    assert keys.verifying() == (new, old)
    assert keys.signing_key().public == new

    keys.retire(old.id.hex(), NOW + timedelta(days=2))

    assert states(keys) == [KeyState.SIGNS, KeyState.RETIRED]
    assert keys.verifying() == (new,)
    # Its public key stays, for its signatures in the audit log.
    assert keys.listed()[1].public == old


def test_a_retired_key_has_no_secret_left(keys: KeyFolder, tmp_path: Path) -> None:
    old = keys.create(NOW)
    [path] = (tmp_path / "keys" / "gateway").iterdir()
    seed = path.read_text().partition('"seed":"')[2][:64]
    keys.rotate(NOW)

    keys.retire(old.label, NOW)
    keys.retire(old.label, NOW + timedelta(days=9))

    texts = [one.read_text() for one in (tmp_path / "keys" / "gateway").iterdir()]
    assert len(seed) == 64
    assert not any(seed in text for text in texts)
    assert keys.listed()[1].retired_at == NOW


def test_a_left_draft_has_no_retired_secret(keys: KeyFolder, tmp_path: Path) -> None:
    old = keys.create(NOW)
    folder = tmp_path / "keys" / "gateway"
    [path] = folder.iterdir()
    # As kill -9 leaves it between the name of the key and the end of its draft.
    os.link(path, folder / f".{path.name}.00112233aabbccdd")
    keys.rotate(NOW)
    of_newer = {one.name for one in folder.iterdir() if path.name not in one.name}

    keys.retire(old.label, NOW)

    assert {one.name for one in folder.iterdir()} == {path.name, *of_newer}


def test_the_name_of_a_key_is_on_the_disk_before_it_signs(
    keys: KeyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = synced_names(monkeypatch)

    public = keys.create(NOW)

    folder = tmp_path / "keys" / "gateway"
    assert names[folder] == [f"{public.id.hex()}.key.json"]
    assert tmp_path / "keys" in names
    assert tmp_path in names


def test_the_key_that_signs_is_not_retired(keys: KeyFolder) -> None:
    public = keys.create(NOW)

    with pytest.raises(SettingsError, match="first run: keyturn keys rotate"):
        keys.retire(public.label, NOW)
    with pytest.raises(SettingsError, match="has no key 'other'"):
        keys.retire("other", NOW)


def test_a_clock_that_goes_back_revives_no_key(keys: KeyFolder) -> None:
    keys.create(NOW)
    for day in range(1, 6):
        new = keys.rotate(NOW - timedelta(days=day))
        assert keys.signing_key().public == new


def test_keys_are_files_of_their_owner_alone(keys: KeyFolder, tmp_path: Path) -> None:
    keys.create(NOW)
    folder = tmp_path / "keys" / "gateway"
    [path] = folder.iterdir()

    assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600

    path.chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        keys.signing_key()


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_writable_keys_are_refused(keys: KeyFolder, tmp_path: Path, mode: int) -> None:
    keys.create(NOW)
    folder = tmp_path / "keys" / "gateway"

    folder.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod go-w {folder}"):
        keys.verifying()
    folder.chmod(0o755)
    assert keys.verifying()


def test_keys_on_a_file_system_that_nobody_can_write_to_are_believed(
    keys: KeyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mounted Kubernetes Secret, in a folder that is writable for all.

    To mount one takes root, so only the system's answer about it is replaced.
    """
    keys.create(NOW)
    (tmp_path / "keys" / "gateway").chmod(0o1777)
    facts = list(os.statvfs(tmp_path))
    facts[8] |= os.ST_RDONLY  # f_flag

    def read_only(_: object) -> os.statvfs_result:
        return os.statvfs_result(facts)

    monkeypatch.setattr(os, "statvfs", read_only)

    assert keys.verifying()


@pytest.mark.parametrize("change", ["", "{", '{"public":"x"}', "seed", "public"])
def test_a_damaged_key_is_named(keys: KeyFolder, tmp_path: Path, change: str) -> None:
    keys.create(NOW)
    [path] = (tmp_path / "keys" / "gateway").iterdir()
    text = path.read_text()
    seed = text.partition('"seed":"')[2][:64]
    if change == "seed":
        change = text.replace(seed, seed[::-1])
    elif change == "public":
        change = text.replace("gateway", "bot")
    path.write_text(change)

    with pytest.raises(SettingsError) as refused:
        keys.listed()
    assert "is damaged" in str(refused.value)
    assert seed not in str(refused.value)
    assert seed[::-1] not in str(refused.value)


def test_an_unreadable_folder_is_an_error(keys: KeyFolder, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "gateway").write_text("a file, where a folder is needed")

    for ask in (keys.listed, keys.verifying, lambda: keys.create_first(NOW)):
        with pytest.raises(SettingsError, match=r"cannot be used: Not a directory"):
            ask()


# A process finds its signing keys, and the public keys of others.


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


def test_a_running_process_survives_damage(tmp_path: Path, clock: Clock) -> None:
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


def test_many_first_starts_agree_on_the_key_that_signs(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    rings = [Keyring(tmp_path, makes=[Role.BOT]) for _ in range(8)]

    def begin(keyring: Keyring) -> None:
        start.wait()
        keyring.make_missing(NOW)

    threads = [threading.Thread(target=begin, args=(one,)) for one in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({one.signing(Role.BOT).public for one in rings}) == 1
    assert len({one.verifying_now(Role.BOT) for one in rings}) == 1


# A public key is read whole or not at all.

KEY = SigningKey.from_seed("keyturn/gateway", bytes(range(32)))
TEXT = KEY.public.text


def test_what_is_printed_is_read() -> None:
    assert parse_public_key(f" {TEXT}\n") == KEY.public


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keyturn/gateway",
        TEXT[:-4],
        TEXT + "A",
        TEXT.replace("gateway", "bot"),
        "keyturn/" + TEXT,
        TEXT.upper(),
        TEXT.replace("+", "-", 1),
        TEXT.rpartition("+")[0] + "+AAAA",
        "é" + TEXT,
    ],
)
def test_a_mistyped_key_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="keyturn keys list"):
        parse_public_key(text)
