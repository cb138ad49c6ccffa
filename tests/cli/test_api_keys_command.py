"""'keyturn api-keys' makes a key, shows it once, lists and revokes it."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def admin(operator: Shell) -> Shell:
    """Give a shell whose secret is in a file."""
    del operator.env["KEYTURN_SECRET"]
    return operator


def test_a_key_is_shown_once(admin: Shell) -> None:
    out = admin.said("api-keys", "create", "billing-prod", "--agent", "billing")
    key = out.strip().splitlines()[-1]
    listed = admin.said("api-keys", "list")
    [row] = admin.found("api-keys", "list")

    assert key.startswith("tk_")
    assert key.rpartition("_")[2] not in f"{listed}{row}"
    assert (row["name"], row["agents"], row["tools"]) == (
        "billing-prod",
        ["billing"],
        ["*"],
    )
    assert row["scopes"] == ["execute", "read", "submit"]
    assert "billing-prod: agents billing; tools *;" in listed


def test_a_key_can_be_narrowed(admin: Shell) -> None:
    made = admin.found(
        *("api-keys", "create", "ci", "--agent", "a", "--agent", "b", "--by", "ana"),
        *("--tool", "look_up", "--scope", "submit", "--scope", "read"),
        *("--expires", "12h"),
    )

    assert made["key"].startswith(f"tk_{made['id']}_")
    assert (made["agents"], made["tools"]) == (["a", "b"], ["look_up"])
    assert (made["scopes"], made["created_by"]) == (["read", "submit"], "ana")


def test_a_key_is_revoked_by_its_id_or_its_text(admin: Shell) -> None:
    first, second = (
        admin.found("api-keys", "create", name, "--agent", "a")
        for name in ("first", "second")
    )
    by_text = admin.said("api-keys", "revoke", second["key"])

    assert "(first) was revoked" in admin.said("api-keys", "revoke", first["id"])
    assert "(second) was revoked" in by_text
    assert second["key"] not in by_text
    assert "no active API key" in admin.refused("api-keys", "revoke", first["id"])
    assert all(row["revoked_at"] for row in admin.found("api-keys", "list"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("x",), "agent"),
        (("x", "--agent", "a", "--expires", "5y"), "is not a duration"),
        (("x", "--agent", "a", "--expires", "999d"), "longer than"),
        ((" ", "--agent", "a"), "is not a name"),
        (("x", "--agent", "a\x1b"), "is not a name"),
        (("x", "--agent", " a"), "without surrounding spaces"),
        (("x", "--agent", "a", "--scope", "approve"), "scope"),
    ],
)
def test_a_mistake_makes_no_key(admin: Shell, words: tuple[str, ...], why: str) -> None:
    assert why in admin.refused("api-keys", "create", *words)
    assert "There is no API key" in admin.said("api-keys", "list")


def test_a_key_that_ends_with_the_secret_before_is_marked(admin: Shell) -> None:
    admin("api-keys", "create", "old", "--agent", "billing")
    before = admin.said("api-keys", "list")
    [secret] = admin.folder.rglob("secret.key")
    secret.rename(secret.with_name("secret.old.key"))
    admin("api-keys", "create", "new", "--agent", "billing")

    after = admin.said("api-keys", "list")
    rows = admin.found("api-keys", "list")

    assert "ends with that secret" not in before
    assert after.count("ends with that secret") == 1
    in_use = {one["name"]: one["secret_in_use"] for one in rows}
    assert in_use == {"old": False, "new": True}
