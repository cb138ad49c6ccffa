"""'keyturn api-keys' makes a key, shows it once, lists and revokes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from keyturn.cli.main import USAGE, run
from keyturn.gateway.store.embedded.engine import EmbeddedEngine

Tell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Generator[Tell]:
    config = tmp_path / "keyturn.yml"
    config.write_text("policy: {version: 1}\n")

    with EmbeddedEngine(tmp_path / "engine") as engine:

        def told(*words: str) -> tuple[int, str, str]:
            env = {"KEYTURN_REDIS_URL": engine.url}
            code = run(["--config", str(config), "api-keys", *words], env)
            shown = capsys.readouterr()
            return code, shown.out, shown.err

        yield told


def test_a_key_is_shown_once(tell: Tell) -> None:
    code, out, _ = tell("create", "billing-prod", "--agent", "billing")
    key = out.strip().splitlines()[-1]
    _, listed, _ = tell("list")
    _, as_json, _ = tell("list", "--json")

    assert code == 0
    assert key.startswith("tk_")
    assert key.rpartition("_")[2] not in listed + as_json
    [row] = json.loads(as_json)
    assert (row["name"], row["agents"], row["tools"]) == (
        "billing-prod",
        ["billing"],
        ["*"],
    )
    assert row["scopes"] == ["execute", "read", "submit"]
    assert "billing-prod: agents billing; tools *;" in listed


def test_a_key_can_be_narrowed(tell: Tell) -> None:
    _, out, _ = tell(
        *("create", "ci", "--agent", "a", "--agent", "b", "--tool", "look_up"),
        *("--scope", "submit", "--scope", "read", "--expires", "12h", "--json"),
        *("--by", "ana"),
    )

    made = json.loads(out)
    assert made["key"].startswith(f"tk_{made['id']}_")
    assert (made["agents"], made["tools"]) == (["a", "b"], ["look_up"])
    assert made["scopes"] == ["read", "submit"]
    assert made["created_by"] == "ana"


def test_a_key_is_revoked_by_its_id_or_its_text(tell: Tell) -> None:
    made = [
        json.loads(tell("create", name, "--agent", "a", "--json")[1])
        for name in ("first", "second")
    ]
    by_id = tell("revoke", made[0]["id"])
    by_text = tell("revoke", made[1]["key"])
    again = tell("revoke", made[0]["id"])

    assert "(first) was revoked" in by_id[1]
    assert "(second) was revoked" in by_text[1]
    assert made[1]["key"] not in by_text[1]
    assert again[0] == USAGE
    assert "no active API key" in again[2]
    rows = json.loads(tell("list", "--json")[1])
    assert all(row["revoked_at"] for row in rows)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("create", "x"), "agent"),
        (("create", "x", "--agent", "a", "--expires", "5y"), "is not a duration"),
        (("create", "x", "--agent", "a", "--expires", "999d"), "longer than"),
        (("create", " ", "--agent", "a"), "is not a name"),
        (("create", "x", "--agent", "a\x1b"), "is not a name"),
        (("create", "x", "--agent", " a"), "without surrounding spaces"),
        (("create", "x", "--agent", "a", "--scope", "approve"), "scope"),
    ],
)
def test_a_mistake_makes_no_key(tell: Tell, words: tuple[str, ...], why: str) -> None:
    code, out, err = tell(*words)

    assert code == USAGE
    assert why in out + err
    assert "There is no API key" in tell("list")[1]


def test_a_key_that_ends_with_the_secret_before_is_marked(
    tell: Tell, tmp_path: Path
) -> None:
    tell("create", "old", "--agent", "billing")
    _, before, _ = tell("list")
    [secret] = tmp_path.rglob("secret.key")
    secret.rename(secret.with_name("secret.old.key"))
    tell("create", "new", "--agent", "billing")

    _, after, _ = tell("list")
    _, as_json, _ = tell("list", "--json")

    assert "ends with that secret" not in before
    assert after.count("ends with that secret") == 1
    found = {one["name"]: one["secret_in_use"] for one in json.loads(as_json)}
    assert found == {"old": False, "new": True}
