"""The doctor reports what is missing, and calls that nobody could approve."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from keyturn.bot.manifest import DIRECT_MESSAGES, SCOPES
from keyturn.bot.web import Slack, SlackBody, SlackRefused
from keyturn.cli import doctor as checking
from keyturn.cli import reviewer_checks
from keyturn.cli.main import USAGE
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.cli.conftest import Shell
from tests.panics import Panic

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


async def test_the_doctor_is_content_when_everything_is_there(doctor: Doctor) -> None:
    doctor.shell.write(GRAPH, "graph.py")
    doctor.shell.write("agents: {a: {graph: 'graph.py:graph'}}")

    checks = await doctor.checks()

    assert {state for state, _ in checks.values()} == {"good", "skipped"}
    assert set(checks) == {
        *("python", "settings", "policy", "secret", "keys"),
        *("store", "checkpoints", "audit", "outbox", "security", "processes"),
        *("waiting", "agent a", "Slack bot token", "Slack scopes", "Slack app token"),
        *("role support", "role senior", APPROVE, ESCALATE, "channel C0APPROVALS"),
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


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("gone", "the user group S0SENIOR does not exist"),
        ("disabled", "the user group @senior (S0SENIOR) is disabled"),
        ("empty", "the user group @senior (S0SENIOR) is empty"),
        ("guest", "Gus Guest is a guest"),
    ],
)
async def test_an_empty_group_is_named(doctor: Doctor, harm: str, words: str) -> None:
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
    assert checks[ESCALATE] == ("bad", "cannot be approved: it takes 1 more of senior.")


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

    checks = await doctor.checks()

    assert checks["people"][1].startswith("Slack did not identify U0DAN")
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


async def test_the_doctor_posts_only_when_asked(doctor: Doctor) -> None:
    channels = (
        'agents: {night: {channel: "#random", tools: {drop: {channel: C0GENERAL}}}}'
    )
    policy = POLICY.replace("C0APPROVALS", '"#agent-approvals"')
    doctor.shell.write(policy + channels, "policy.yml")

    checks = await doctor.checks("--post")

    assert checks["channel #agent-approvals"][0] == "good"
    assert checks["channel C0GENERAL"][0] == "good"
    state, text = checks["channel #random"]
    assert state == "bad"
    assert "chat.postMessage with 'channel_not_found': there is no such" in text


async def test_the_doctor_names_what_is_wrong_with_the_tokens(doctor: Doctor) -> None:
    doctor.shell.env["SLACK_APP_TOKEN"] = "xapp-wrong"
    app_token = await doctor.checks()
    doctor.shell.env["SLACK_BOT_TOKEN"] = "xoxb-wrong"
    bot_token = await doctor.checks()
    doctor.shell.env["KEYTURN_SLACK_API_URL"] = "http://127.0.0.1:1/api/"
    silent = await doctor.checks()

    assert "connections.open with 'invalid_auth'" in app_token["Slack app token"][1]
    assert "auth.test with 'invalid_auth': copy the" in bot_token["Slack bot token"][1]
    assert "Slack scopes" not in bot_token
    assert "Check the network, a proxy" in silent["Slack bot token"][1]


ALL = ",".join(SCOPES)


@pytest.mark.parametrize(
    ("granted", "state", "text"),
    [
        ("chat:write", "bad", "the app lacks app_mentions:read, channels:history"),
        (ALL, "good", "all are granted"),
        (f"{ALL},files:read", "good", "all are granted"),
        ("", "skipped", "Slack did not return"),
    ],
)
async def test_the_doctor_compares_the_granted_scopes(
    doctor: Doctor, granted: str, state: str, text: str
) -> None:
    found, told = (await checked(doctor, granted))["Slack scopes"]

    assert (found, text in told) == (state, True)


@pytest.mark.parametrize(
    ("notify", "state", "text"),
    [
        ("mention", "good", "all are granted"),
        ("dm", "bad", "the app lacks im:write; add"),
    ],
)
async def test_direct_messages_need_a_scope_only_where_the_policy_has_them(
    doctor: Doctor, notify: str, state: str, text: str
) -> None:
    rule = f"  send_it: {{tier: approve, notify: {notify}}}\n"
    doctor.shell.write(POLICY.replace("  wire:", rule + "  wire:"), "policy.yml")
    granted = ",".join(one for one in SCOPES if one != DIRECT_MESSAGES)

    found, told = (await checked(doctor, granted))["Slack scopes"]

    assert (found, text in told) == (state, True)


async def test_the_doctor_refuses_an_organizations_app(doctor: Doctor) -> None:
    checks = await checked(doctor, ALL, is_enterprise_install=True)

    assert checks["Slack bot token"][0] == "bad"
    assert "Install it in the workspace" in checks["Slack bot token"][1]


async def checked(doctor: Doctor, granted: str, **says: bool) -> Checks:
    """Return the doctor's output for an app with these scopes."""

    async def answer(request: web.Request) -> web.Response:
        headers = {"X-OAuth-Scopes": granted}
        reply = {"ok": True, "url": "wss://x", **says}
        return web.json_response(reply, headers=headers)

    app = web.Application()
    app.router.add_post("/api/{method}", answer)
    async with TestServer(app) as server:
        doctor.shell.env["KEYTURN_SLACK_API_URL"] = str(server.make_url("/api/"))
        return await doctor.checks()


CRASHING = """\
agents: {billing: {graph: "billing.py:graph"}}
policy:
  version: 1
  defaults: {needs: U0ANA}
"""
CHECKS = {
    "nothing_is_here": "store",
    "_secret": "secret",
    "_keys": "keys",
    "open_configured": "store",
    "check_checkpoints": "checkpoints",
    "_graph": "agent billing",
}


@pytest.mark.parametrize("error", [RuntimeError("hunter2"), Panic("hunter2")])
@pytest.mark.parametrize("check", CHECKS)
def test_a_check_that_crashes_ends_no_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, check: str, error: BaseException
) -> None:
    shell.write(CRASHING)
    (shell.folder / ".keyturn").mkdir()

    is_async = inspect.iscoroutinefunction(getattr(checking, check))
    mock = AsyncMock if is_async else Mock
    monkeypatch.setattr(checking, check, mock(side_effect=error))

    ended, *told = shell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0")

    said = "".join(told)
    assert f"{CHECKS[check]}: this check crashed" in said
    assert type(error).__name__ in said
    assert "hunter2" not in said
    assert "Slack secrets: " in said
    assert ended == 1


SILENT = "policy: {version: 1, defaults: {needs: U0ANA}}\n"
ASKING = "policy: {version: 1, defaults: {needs: U0ANA, triage: {timeout: 1s}}}\n"
EYES = """\
class Eyes:
    async def assess(self, request):
        return None


class Blind:
    def assess(self, request):
        return None


number = 7
make = Eyes
"""


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (SILENT, ""),
        (ASKING, "✖ triage: the policy uses triage but none is configured"),
        (f"{ASKING}triage: eyes.py:make", "✔ triage: "),
        (f"{SILENT}triage: eyes.py:make", "eyes.py:make; the policy never asks it"),
        (f"{SILENT}triage: eyes.py:makes", "has no 'makes'"),
        (f"{SILENT}triage: eyes.py:number", "cannot be called without arguments"),
        (f"{SILENT}triage: eyes.py:Blind", "is no object with a coroutine 'assess'"),
        (f"{SILENT}triage: gone.py:make", "There is no file"),
    ],
)
def test_the_doctor_tries_the_triage(shell: Shell, settings: str, found: str) -> None:
    shell.write(EYES, "eyes.py")
    shell.write(settings)

    lines = shell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0").out.splitlines()

    told = "\n".join(line for line in lines if " triage: " in line)
    assert found in told
    assert bool(told) is bool(found)


BILLING_GRAPH = """\
from langchain.agents import create_agent
from langchain_core.tools import tool
from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import scripted

@guarded
@tool
def wire_money(to: str) -> str:
    "Send money."
    return to

graph = create_agent(
    scripted([]), [wire_money], middleware=[ApprovalMiddleware("billing")]
)
"""
BILLING = """\
agents: {{billing: {{graph: "billing.py:graph"}}}}
policy:
  version: 1
  defaults: {{needs: U0ANA}}
  tools: {{{tools}}}
  agents: {{{agents}}}
"""


def told(
    shell: Shell, tools: str = "", agents: str = "", graph: str = "billing"
) -> str:
    """Return the doctor's notes about the policy."""
    shell.write(BILLING_GRAPH, "billing.py")
    text = BILLING.format(tools=tools, agents=agents)
    shell.write(text.replace("billing.py", f"{graph}.py"))
    lines = shell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0").out.splitlines()
    return "\n".join(line for line in lines if "· policy: " in line)


KNOWN = "wire_money: {tier: deny}"


def test_names_without_a_graph_are_listed_with_the_similar(shell: Shell) -> None:
    tools = told(shell, "wire_mony: {tier: deny}, look_up: {tier: auto}")
    of_agent = told(shell, agents="billing: {tools: {wires: {tier: deny}}}")

    assert "'look_up', 'wire_mony' (did you mean 'wire_money'?)" in tools
    assert "'wires'" in of_agent
    assert "'biling' (did you mean 'billing'?)" in told(shell, agents="biling: {}")
    assert told(shell, KNOWN, f"billing: {{tools: {{{KNOWN}}}}}") == ""
    # No graph can be loaded.
    assert told(shell, "wire_mony: {tier: deny}", graph="biling") == ""


@pytest.mark.parametrize(("command", "code"), [("doctor", 1), ("gateway", USAGE)])
def test_a_renamed_graph_is_refused(shell: Shell, command: str, code: int) -> None:
    shell.write(BILLING_GRAPH.replace('("billing")', '("bills")'), "billing.py")
    shell.write(BILLING.format(tools="", agents=""))

    shown = shell(command)

    assert shown.code == code
    told = "'billing' calls itself 'bills'; write ApprovalMiddleware('billing')"
    assert told in shown.out + shown.err


def test_the_doctor_says_what_is_missing_here(shell: Shell) -> None:
    shell.write("agents: {a: {graph: 'nowhere.py:graph'}}\npolicy: other.yml\n")
    (shell.folder / ".keyturn").mkdir()
    shell.write("short", ".keyturn/secret.key")

    code, out, _ = shell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0")

    bad = [line[2:].split(": ")[0] for line in out.splitlines() if line[0] == "✖"]
    assert code == 1
    assert bad == ["policy", "secret", "store", "agent a", *["Slack secrets"] * 2]


def test_the_doctor_reports_an_unreachable_store_once(shell: Shell) -> None:
    shell.write(POLICY, "policy.yml")
    out = shell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0").out

    assert "✔ policy: " in out
    assert out.count("The store does not answer") == 1


def test_the_doctor_starts_the_embedded_store(shell: Shell) -> None:
    shell.write("encrypt_store: true")

    checks = shell.checks()

    assert checks["store"][1].startswith("valkey 9.")
    assert "acknowledged writes are on its disk" in checks["store"][1]


def test_the_doctor_stops_at_settings_that_cannot_be_read(shell: Shell) -> None:
    shell.write("workerz: 1")

    code, out, _ = shell("doctor")

    assert code == 1
    assert out.splitlines()[-1] == (
        "✖ settings: keyturn.yml:1: Unknown key 'workerz'; did you mean 'workers'?"
    )
