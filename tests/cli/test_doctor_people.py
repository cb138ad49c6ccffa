"""The doctor reports who could approve each call, and calls without such people."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keyturn.bot.web import Slack, SlackBody, SlackRefused
from keyturn.cli import reviewer_checks
from keyturn.cli.main import run
from keyturn.gateway.policy.eligibility import reachable_requirements
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox

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
    def __init__(
        self, sandbox: Sandbox, url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.sandbox = sandbox
        self.env = {
            "KEYTURN_REDIS_URL": url,
            "KEYTURN_SLACK_API_URL": sandbox.api_url,
            "SLACK_BOT_TOKEN": sandbox.bot_token,
            "SLACK_APP_TOKEN": sandbox.app_token,
        }
        self.capsys = capsys

    async def checks(self, *words: str) -> tuple[int, Checks]:
        """Run the doctor in a thread: it has a separate event loop."""
        self.capsys.readouterr()
        code = await asyncio.to_thread(run, ["doctor", "--json", *words], self.env)
        rows = json.loads(self.capsys.readouterr().out)["checks"]
        return code, {row["name"]: (row["state"], row["text"]) for row in rows}


@pytest.fixture
def doctor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sandbox: Sandbox,
    store: Store,
    capsys: pytest.CaptureFixture[str],
) -> Doctor:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yml").write_text(POLICY)
    return Doctor(sandbox, store.conn.url, capsys)


async def test_the_doctor_is_content_when_everything_is_there(
    doctor: Doctor, tmp_path: Path
) -> None:
    (tmp_path / "graph.py").write_text(GRAPH)
    (tmp_path / "keyturn.yml").write_text("agents: {a: {graph: 'graph.py:graph'}}")

    code, checks = await doctor.checks()

    assert code == 0
    assert {state for state, _ in checks.values()} == {"good", "skipped"}
    assert set(checks) == {
        "python",
        "packages",
        "settings",
        "policy",
        "secret",
        "keys",
        "encryption",
        "store",
        "checkpoints",
        "audit",
        "outbox",
        "security",
        "processes",
        "waiting",
        "agent a",
        "Slack bot token",
        "Slack scopes",
        "Slack app token",
        "role support",
        "role senior",
        APPROVE,
        ESCALATE,
        "channels",
    }
    assert "keyturn in Keyturn Sandbox" in checks["Slack bot token"][1]


async def test_every_role_is_counted_and_every_requirement(doctor: Doctor) -> None:
    code, checks = await doctor.checks()

    assert code == 0
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
    _, of_dan = await doctor.checks("--requester", "U0DAN")
    code, of_chloe = await doctor.checks("--requester", "U0CHLOE")
    _, of_nobody = await doctor.checks("--requester", "U0NOBODY")

    assert of_dan["role support"][1] == (
        "3 people, 2 could approve a request of Dan Díaz"
    )
    assert of_dan[ESCALATE] == ("good", "3 people could approve, 2 are needed")
    assert code == 1
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

    code, checks = await doctor.checks()

    assert code == 1
    assert checks["role senior"][0] == "bad"
    assert words in checks["role senior"][1]
    assert "nobody can decide" in checks["role senior"][1]
    assert checks[ESCALATE] == (
        "bad",
        "cannot be approved: it takes 1 more of senior.",
    )


async def test_what_slack_does_not_say_is_not_counted_as_nobody(doctor: Doctor) -> None:
    doctor.sandbox.faults.plan("http_500", "users.info", calls=1)
    _, no_account = await doctor.checks()
    doctor.sandbox.faults.plan("http_500", "usergroups.list", calls=1)
    _, no_groups = await doctor.checks()

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

    code, checks = await doctor.checks("--requester", "U0DAN")

    assert code == 1
    assert checks["people"][1].startswith("Slack did not identify U0DAN")
    assert "requester" not in checks
    assert not any("cannot be approved" in text for _, text in checks.values())


async def test_a_long_list_of_people_is_looked_up_in_part_and_says_so(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviewer_checks, "MAX_LOOKUPS", 2)

    _, checks = await doctor.checks()

    assert checks["people"][1] == (
        "4 people are named. 2 were looked up; the others are counted as members."
    )
    assert checks["role support"][1].startswith("3 people")


async def test_a_revoked_token_is_named(doctor: Doctor) -> None:
    await doctor.sandbox.control.revoke_bot_token()

    code, checks = await doctor.checks()

    assert code == 1
    assert "'token_revoked': install the app again" in checks["Slack bot token"][1]


def test_only_tiers_that_a_call_can_come_to_are_looked_at() -> None:
    policy = load_policy(
        POLICY + "  pay: {tier: auto, raise: [{when: args.n > 5, to: escalate, "
        "because: much}, {when: args.n > 1, needs: senior, because: some}]}\n"
        "  never: {tier: deny}\n",
        "policy.yml",
    )

    found = [
        (one.tool, one.tier.value, [role.name for role in one.requirement.roles])
        for one in reachable_requirements(policy)
    ]

    assert ("", "approve", ["support"]) in found
    assert ("wire", "escalate", ["support", "senior"]) in found
    assert [one for one in found if one[0] == "pay"] == [
        ("pay", "escalate", ["support", "senior"]),
        ("pay", "approve", ["support", "senior"]),
    ]
    assert not [one for one in found if one[0] in {"never", "look_up"}]
