"""The doctor reports who could approve each call, and calls without such people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from keyturn.bot.web import Slack, SlackBody, SlackRefused
from keyturn.cli import reviewer_checks
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.cli.conftest import Shell

POLICY = """\
version: 1
defaults: {tier: approve, needs: support, channel: C0APPROVALS}
roles:
  support: {usergroups: [S0SUPPORT], users: [U0DAN]}
  senior: {usergroups: [S0SENIOR]}
requirements:
  with_senior: {all: [{of: [support, senior]}, {of: senior}]}
tiers: {escalate: {needs: with_senior}}
tools:
  look_up: {tier: auto}
  wire: {tier: escalate}
"""
GRAPH = """\
from langgraph.graph import START, StateGraph
graph = StateGraph(dict).add_node("a", lambda s: s).add_edge(START, "a").compile()
"""
APPROVE = "people for any other tool (approve)"
ESCALATE = "people for wire (escalate)"
Checks = dict[str, tuple[str, str]]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as running:
        yield running


class Doctor:
    """Runs the doctor next to a sandbox."""

    def __init__(self, sandbox: Sandbox, shell: Shell) -> None:
        self.sandbox = sandbox
        self.shell = shell
        shell.env |= {
            "KEYTURN_SLACK_API_URL": sandbox.api_url,
            "SLACK_BOT_TOKEN": sandbox.bot_token,
            "SLACK_APP_TOKEN": sandbox.app_token,
        }

    async def checks(self, *words: str) -> Checks:
        """Run the doctor in a thread: it has a separate event loop."""
        return await asyncio.to_thread(self.shell.checks, *words)


@pytest.fixture
def doctor(sandbox: Sandbox, shell: Shell, store: Store) -> Doctor:
    shell.write(POLICY, "policy.yml")
    shell.env = {"KEYTURN_REDIS_URL": store.conn.url}
    return Doctor(sandbox, shell)


async def test_the_doctor_is_content_when_everything_is_there(
    doctor: Doctor,
) -> None:
    doctor.shell.write(GRAPH, "graph.py")
    doctor.shell.write("agents: {a: {graph: 'graph.py:graph'}}")

    checks = await doctor.checks()

    assert {state for state, _ in checks.values()} == {"good", "skipped"}
    assert set(checks) == {
        *("python", "packages", "settings", "policy", "secret", "keys", "encryption"),
        *("store", "checkpoints", "audit", "outbox", "security", "processes"),
        *("waiting", "agent a", "Slack bot token", "Slack scopes", "Slack app token"),
        *("role support", "role senior", APPROVE, ESCALATE, "channels"),
    }
    assert "keyturn in Keyturn Sandbox" in checks["Slack bot token"][1]


async def test_every_role_is_counted_and_every_requirement(doctor: Doctor) -> None:
    checks = await doctor.checks()

    assert checks["role support"] == (
        "good",
        "3 people, 2 could approve a request of one of them",
    )
    assert checks["role senior"][1].startswith("1 person, 0 could")
    assert checks[APPROVE] == ("good", "3 people could approve, 1 is needed")
    assert checks[ESCALATE] == (
        "good",
        "4 people could approve, 2 are needed, but not for requests of Chloé Chen",
    )


async def test_a_requester_is_left_out_of_what_they_ask(doctor: Doctor) -> None:
    of_dan = await doctor.checks("--requester", "U0DAN")
    of_chloe = await doctor.checks("--requester", "U0CHLOE")
    of_nobody = await doctor.checks("--requester", "U0NOBODY")

    assert of_dan["role support"][1] == (
        "3 people, 2 could approve a request of Dan Díaz"
    )
    assert of_dan[ESCALATE] == ("good", "3 people could approve, 2 are needed")
    assert of_chloe[ESCALATE] == (
        "bad",
        "cannot be approved for a request of Chloé Chen: it takes 1 more of senior.",
    )
    assert of_nobody["requester"][0] == "bad"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("gone", "the user group S0SENIOR does not exist"),
        ("disabled", "the user group @senior (S0SENIOR) is disabled"),
        ("empty", "the user group @senior (S0SENIOR) is empty"),
        ("guest", "Gus Guest is a guest"),
    ],
)
async def test_a_group_of_nobody_is_named_with_what_it_makes_impossible(
    doctor: Doctor, harm: str, words: str
) -> None:
    control, workspace = doctor.sandbox.control, doctor.sandbox.workspace
    if harm == "gone":
        del workspace.groups["S0SENIOR"]
    elif harm == "disabled":
        control.disable_group("S0SENIOR")
    else:
        control.set_group("S0SENIOR", ["U0GUEST"] if harm == "guest" else [])

    checks = await doctor.checks()

    assert checks["role senior"][0] == "bad"
    assert words in checks["role senior"][1]
    assert "nobody can decide" in checks["role senior"][1]
    assert checks[ESCALATE] == (
        "bad",
        "cannot be approved: it takes 1 more of senior.",
    )


async def test_what_slack_does_not_say_is_not_counted_as_nobody(doctor: Doctor) -> None:
    doctor.sandbox.faults.plan("http_500", "users.info", calls=1)
    no_account = await doctor.checks()
    doctor.sandbox.faults.plan("http_500", "usergroups.list", calls=1)
    no_groups = await doctor.checks()

    for checks in (no_account, no_groups):
        assert checks["people"][0] == "bad"
        assert not any("cannot be approved" in text for _, text in checks.values())


@pytest.mark.parametrize("answer", [None, {}, {"user": None}, {"user": ["U0DAN"]}])
async def test_an_answer_without_a_user_says_nothing_about_them(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, answer: SlackBody | None
) -> None:
    ask = Slack.ask

    async def refuse(slack: Slack, method: str, **arguments: str) -> SlackBody:
        if method != "users.info":
            return await ask(slack, method, **arguments)
        if answer is None:
            raise SlackRefused(method, "missing_scope")
        return answer

    monkeypatch.setattr(Slack, "ask", refuse)

    checks = await doctor.checks("--requester", "U0DAN")

    assert checks["people"][1].startswith("Slack did not identify U0DAN")
    assert "requester" not in checks
    assert not any("cannot be approved" in text for _, text in checks.values())


async def test_a_long_list_of_people_is_looked_up_in_part_and_says_so(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviewer_checks, "MAX_LOOKUPS", 2)

    checks = await doctor.checks()

    assert checks["people"][1] == (
        "4 people are named. 2 were looked up; the others are counted as members."
    )
    assert checks["role support"][1].startswith("3 people")


async def test_a_revoked_token_is_named(doctor: Doctor) -> None:
    await doctor.sandbox.control.revoke_bot_token()

    checks = await doctor.checks()

    assert "'token_revoked': install the app again" in checks["Slack bot token"][1]
