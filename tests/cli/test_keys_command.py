"""'keyturn keys' and 'keyturn api-keys' make, list and end keys."""

from __future__ import annotations

import pytest

from keyturn.gateway.protocol.public_keys import parse_public_key
from tests.cli.conftest import Shell


def new_key(shell: Shell, verb: str) -> str:
    """Create or rotate the bot's key; return the public key."""
    lines = shell.said("keys", verb, "bot").splitlines()
    [key] = [line for line in lines if line.startswith("keyturn/bot+")]
    return key


def test_a_key_lives_from_create_to_retire(shell: Shell) -> None:
    old, new = new_key(shell, "create"), new_key(shell, "rotate")
    assert new != old

    key_id = parse_public_key(old).id.hex()
    assert "its secret is gone" in shell.said("keys", "retire", "bot", key_id)

    rows = [(row["public"], row["state"]) for row in shell.found("keys", "list")]
    assert rows == [(new, "signs"), (old, "retired")]
    listed = shell.said("keys", "list")
    assert new in listed
    assert "keyturn keys create gateway" in listed


def test_a_used_key_is_kept(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell.folder / ".keyturn" / "valkey").mkdir(parents=True)

    def three_calls(*_: object) -> int:
        return 3

    monkeypatch.setattr("keyturn.cli.keys.use_store", three_calls)
    key_id = parse_public_key(new_key(shell, "create")).id.hex()
    shell("keys", "rotate", "bot")

    assert "3 calls depend" in shell.refused("keys", "retire", "bot", key_id)
    states = [row["state"] for row in shell.found("keys", "list")]
    assert states == ["signs", "verifies"]
    assert shell.said("keys", "retire", "bot", key_id, "--force")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rotate", "bot"), "keyturn keys create bot"),
        (("retire", "bot", "12345678"), "has no key '12345678'"),
        (("create", "agent"), "'agent' is not one of"),
    ],
)
def test_what_cannot_be_done_ends_in_one_sentence(
    shell: Shell, words: tuple[str, ...], says: str
) -> None:
    assert says in shell.refused("keys", *words)


def test_keys_of_others_are_listed_from_the_settings(shell: Shell) -> None:
    public = new_key(shell, "create")
    shell.write(f"keys: {{folder: mine, bot: ['{public}']}}")

    [row] = shell.found("keys", "list")

    assert row == {"role": "bot", "public": public, "state": "known"}
    assert public in shell.said("keys", "list")


def test_the_doctor_says_when_no_approved_call_could_run(shell: Shell) -> None:
    (shell.folder / ".keyturn").mkdir()
    assert shell.checks()["keys"][0] == "good"
    shell("keys", "create", "gateway")

    state, text = shell.checks()["keys"]

    assert state == "bad"
    assert "keys: {bot: [" in text
    shell("keys", "create", "bot")
    assert shell.checks()["keys"] == ("good", "bot 1, gateway 1")
    [path] = (shell.folder / ".keyturn" / "keys" / "bot").iterdir()
    path.chmod(0o644)
    assert "chmod 600" in shell.checks()["keys"][1]


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
    assert "name=billing-prod  agents=billing  tools=*  scopes=" in listed


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

    assert "ends with an earlier" not in before
    assert after.count("ends with an earlier") == 1
    assert after.startswith("✖ ")
    in_use = {one["name"]: one["secret_in_use"] for one in rows}
    assert in_use == {"old": False, "new": True}
