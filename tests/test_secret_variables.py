"""A secret can be in a file, as Docker and Kubernetes mount it."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.gateway.errors import SettingsError
from keyturn.gateway.secret_variables import FROM_FILES, secret, with_files


@pytest.mark.parametrize("name", FROM_FILES)
def test_the_content_of_the_file_becomes_the_value(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n", encoding="utf-8")
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
