"""A workspace that is kept in a file outlives its server."""

from pathlib import Path

import pytest

from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import card, home, modal
from tests.sandbox.bolt_app import new_client

APPROVALS = "C0APPROVALS"


async def test_cards_modals_and_tokens_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "slack.json"
    async with Sandbox(state_path=path) as first:
        client = new_client(first)
        posted = await client.chat_postMessage(
            channel=APPROVALS, text="t", blocks=card("one")
        )
        await client.chat_postEphemeral(channel=APPROVALS, user="U0ANA", text="psst")
        await client.views_publish(user_id="U0ANA", view=home())
        trigger_id = first.slack.triggers.issue("U0ANA")
        await client.views_open(trigger_id=trigger_id, view=modal())
        before = await first.person("U0ANA").state()
        token, secret = first.bot_token, first.signing_secret

    async with Sandbox(state_path=path) as second:
        after = await second.person("U0ANA").state()
        client = new_client(second, token)
        update = await client.chat_update(
            channel=APPROVALS, ts=posted["ts"], text="t", blocks=card("two")
        )
        later = await client.chat_postMessage(channel=APPROVALS, text="new")

    for key in ("channels", "views", "home", "users", "usergroups"):
        assert after[key] == before[key]
    assert update["ok"]
    assert later["ts"] > posted["ts"]
    assert second.signing_secret == secret
    assert path.stat().st_mode & 0o077 == 0


async def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "slack.json"
    path.write_text('{"shopping": ["milk"]}', "utf-8")

    with pytest.raises(ValueError, match="is not a saved sandbox"):
        async with Sandbox(state_path=path):
            pass

    assert path.read_text("utf-8") == '{"shopping": ["milk"]}'


async def test_a_full_disk_does_not_stop_the_conversation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kept.json"
    async with Sandbox(state_path=path) as sandbox:
        # Every writing fails, as on a full disk.
        path.with_name("kept.json.draft").mkdir()
        await sandbox.person("U0ANA").say("C0GENERAL", "hello")
        said = await sandbox.person("U0BEN").messages("C0GENERAL")

    assert [one["text"] for one in said] == ["hello"]
    assert "sandbox.not_saved" in caplog.text
