"""The secret file is made once, whole, and for its owner only."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.secret_file import load_or_create_secret, sync_folder
from keyturn.gateway.secret_variables import FROM_FILES, secret, with_files
from tests.synced_names import synced_names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "secret.key"


def test_it_is_made_at_the_first_call_and_kept(path: Path) -> None:
    first = load_or_create_secret(path)

    assert len(first) == 32
    assert load_or_create_secret(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [found.name for found in path.parent.iterdir()] == ["secret.key"]


def test_its_name_is_on_the_disk_before_it_seals(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = synced_names(monkeypatch)

    load_or_create_secret(path)

    assert names[path.parent] == ["secret.key"]
    assert path.parent.parent in names


def test_a_loose_umask_does_not_loosen_it(path: Path) -> None:
    deep = path.parent / "deeper" / "secret.key"
    before = os.umask(0)
    try:
        load_or_create_secret(deep)
    finally:
        os.umask(before)

    assert deep.stat().st_mode & 0o777 == 0o600
    # Write access to a folder above it is enough to replace it.
    for folder in (deep.parent, path.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_all_who_start_at_once_get_the_same_secret(tmp_path: Path) -> None:
    for attempt in range(30):
        path = tmp_path / str(attempt) / "secret.key"
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(load_or_create_secret, [path] * 8))
        assert len(found) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_secret_that_others_can_use_is_refused(path: Path, mode: int) -> None:
    load_or_create_secret(path)
    path.chmod(mode)

    with pytest.raises(SettingsError, match="chmod 600"):
        load_or_create_secret(path)


@pytest.mark.parametrize("size", [0, 31])
def test_a_file_of_another_size_is_never_replaced(path: Path, size: int) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x" * size)
    path.chmod(0o600)

    with pytest.raises(SettingsError, match="is not 32 bytes long"):
        load_or_create_secret(path)

    assert path.read_bytes() == b"x" * size


def test_a_folder_in_the_place_of_the_secret_is_refused(path: Path) -> None:
    path.mkdir(parents=True)

    with pytest.raises(SettingsError, match="cannot be used"):
        load_or_create_secret(path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SettingsError, match="set KEYTURN_SECRET"):
        load_or_create_secret(tmp_path / "file" / "secret.key")


@pytest.mark.parametrize(
    ("code", "is_raised"), [(errno.EINVAL, False), (errno.EIO, True)]
)
def test_only_a_file_system_that_cannot_sync_a_folder_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, *, is_raised: bool
) -> None:
    def fails(_: int) -> None:
        raise OSError(code, "failed")

    monkeypatch.setattr(os, "fsync", fails)

    with pytest.raises(OSError, match="failed") if is_raised else nullcontext():
        sync_folder(tmp_path)


# A secret can be in a file, as Docker and Kubernetes mount it.


@pytest.mark.parametrize("name", FROM_FILES)
@pytest.mark.parametrize("content", ["s3cret\n", "\ufeffs3cret\r\n", " s3cret "])
def test_the_content_of_the_file_becomes_the_value(
    name: str, content: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(content, encoding="utf-8")
    env = {f"{name}_FILE": str(file), "PATH": "/bin"}

    assert with_files(env) == {name: "s3cret", "PATH": "/bin"}
    assert secret(env, name) == "s3cret"


def test_other_variables_may_end_in_file() -> None:
    env = {"SSL_CERT_FILE": "/etc/ca.pem", "KEYTURN_SECRET": "a"}

    assert with_files(env) == env


@pytest.mark.parametrize(
    ("content", "more", "problem"),
    [
        (b"a", {"KEYTURN_SECRET": "b"}, "are both set; unset one"),
        (b"", {}, "named by KEYTURN_SECRET_FILE, is empty"),
        (b"\xff\xfe", {}, "it is not UTF-8"),
        (None, {}, "No such file or directory"),
    ],
)
def test_an_unusable_file_is_refused_without_its_content(
    content: bytes | None, more: dict[str, str], problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(SettingsError, match=problem):
        with_files({"KEYTURN_SECRET_FILE": str(file), **more})
