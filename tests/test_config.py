"""Settings are read once, and every mistake is one sentence without a secret."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.service_settings import Day, DigestSettings, MetricsSettings
from keyturn.gateway.setting_forms import AUDIT_KEPT, RetentionSettings, RetrySettings
from tests.levels import examples

SECRET = "ab" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keyturn.yml"


def load(file: Path, text: str, **env: str) -> Settings:
    file.write_text(text)
    return Settings.load(file, env)


def refusal(file: Path, text: str, **env: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(file, text, **env)
    return str(caught.value).replace(str(file), "keyturn.yml")


def test_an_empty_file_means_the_defaults(file: Path) -> None:
    settings = load(file, "")

    assert settings.tenant == "default"
    assert settings.agents == {}
    assert settings.policy.path == file.parent / "policy.yml"
    assert settings.data_dir == file.parent / ".keyturn"
    assert settings.redis_url is None
    assert settings.checkpoint_place == str(
        file.parent / ".keyturn" / "checkpoints.sqlite"
    )
    assert settings.slack.mode is SlackMode.SOCKET
    assert settings.slack.api_url == "https://slack.com/api/"


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="There is no file"):
        Settings.load(tmp_path / "other.yml", {})


def test_a_graph_of_a_module_has_no_folder(file: Path) -> None:
    graphs = "{a: {graph: './a.py:graph'}, b: {graph: 'package.module:graph'}}"
    settings = load(file, f"agents: {graphs}")

    assert settings.agents["a"].graph == f"{file.parent}/a.py:graph"
    assert settings.agents["b"].graph == "package.module:graph"


def test_triage_is_named_like_a_graph(file: Path) -> None:
    assert load(file, "triage: eyes.py:make").triage == f"{file.parent}/eyes.py:make"
    assert load(file, "triage: eyes:make").triage == "eyes:make"
    assert load(file, "{}").triage is None
    assert "'eyes.py' names no object; write" in refusal(file, "triage: eyes.py")


def test_a_missing_policy_file_says_what_to_do(file: Path) -> None:
    with pytest.raises(SettingsError, match="name yours with 'policy'") as refused:
        load(file, "").policy.read()

    # A user in another folder than their settings would write a second policy.
    assert "If that file is elsewhere, start there" in str(refused.value)


def test_a_named_policy_file_that_is_missing_is_told(file: Path) -> None:
    with pytest.raises(SettingsError, match=r"no file '.*mine\.yml'") as refused:
        load(file, "policy: mine.yml\n").policy.read()

    assert "with the policy. Write one there" in str(refused.value)


def test_the_environment_stands_over_the_file(file: Path) -> None:
    settings = load(
        file,
        "workers: 3\nslack: {port: 1, host: 0.0.0.0}\n",
        KEYTURN_WORKERS="5",
        KEYTURN_SLACK_PORT="8080",
        KEYTURN_SLACK_MODE="http",
        KEYTURN_TENANT="",
    )

    assert settings.workers == 5
    assert settings.slack.port == 8080
    assert settings.slack.host == "0.0.0.0"  # noqa: S104 - a sample
    assert settings.slack.mode is SlackMode.HTTP
    assert settings.tenant == "default"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("workerz: 1", "keyturn.yml:1: Unknown key 'workerz'; did you mean 'workers'?"),
        ("slack: {mode: sokcet}", "'slack.mode' is 'sokcet'; did you mean 'socket'?"),
        (
            "slack: {api_url: 'http://example.com'}",
            "could be read or answered by anybody",
        ),
        ("agents: {a: {graph: nowhere}}", "'nowhere' names no object"),
        ("agents: {' a': {graph: 'a.py:g'}}", "' a' is no name of an agent"),
        ("policy: 3", "write the name of a policy file, or the policy itself"),
        ("redis_url: 'http://u:pw@h'", "this is no Redis URL"),
        ("redis_url: 'redis+ring://h'", "redis+sentinel://host:26379,…/name"),
        (
            "checkpoints: mysql://u:pw@h/d",
            "keyturn.yml:1: 'checkpoints': checkpoints would",
        ),
        ("checkpoints: sqlite:///threads.sqlite", "the path of a SQLite file"),
        ("checkpoints: memory", "would be lost there"),
        ("checkpoints: '\"postgresql://u:pw@h/d\"'", "would be lost there"),
        ("data_dir: ~nobody-here/keyturn", "the home folder is not known"),
        ("tenant: Über", "keyturn.yml:1: 'tenant': write lower-case letters, digits"),
        ("slack: {command: ask}", "'slack.command': write a command such as /app"),
        ("metrics: {channel: ops}", "'metrics.channel': write #name in quotes, or an"),
    ],
)
def test_a_mistake_has_its_line(file: Path, text: str, problem: str) -> None:
    assert problem in refusal(file, text)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("KEYTURN_WORKERS", "many", "KEYTURN_WORKERS: 'workers': write a whole"),
        ("KEYTURN_REDIS_ULR", "redis://h", "did you mean 'KEYTURN_REDIS_URL'?"),
        ("SLACK_BOT_TOKN", "xoxb-1", "did you mean 'SLACK_BOT_TOKEN'?"),
    ],
)
def test_a_mistake_in_the_environment_is_named_by_its_variable(
    file: Path, name: str, value: str, problem: str
) -> None:
    assert problem in refusal(file, "", **{name: value})


def test_variables_of_others_are_left_alone(file: Path) -> None:
    settings = load(file, "", KEYTURN_DEMO_MODEL="m", SLACK_CLI_HOME="x", HOME="/")

    assert settings == load(file, "")


@pytest.mark.parametrize("service", ["", "_GATEWAY", "_VALKEY"])
def test_variables_of_kubernetes_are_left_alone(file: Path, service: str) -> None:
    ends = ("PORT", "SERVICE_HOST", "SERVICE_PORT", "PORT_6379_TCP_ADDR")
    env = {f"KEYTURN{service}_{end}": "10.0.0.1" for end in ends}

    assert load(file, "", **env) == load(file, "")


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"SLACK_BOT_TOKEN": "xapp-hush"}, "OAuth & Permissions"),
        ({"SLACK_BOT_TOKEN": "xoxe.xoxb-1-hush"}, "token rotation"),
        (
            {"SLACK_APP_TOKEN": "xapp-hush\n"},
            "cannot have blanks or line breaks; create one",
        ),
        (
            {"SLACK_SIGNING_SECRET": "hu sh"},
            "cannot have blanks or line breaks; copy it",
        ),
        ({"KEYTURN_SECRET": "hush"}, "KEYTURN_SECRET has 4 characters"),
        ({"KEYTURN_SECRET": "hush" * 16}, "openssl rand -hex 32"),
        ({"KEYTURN_REDIS_URL": "http://u:hush@h"}, "KEYTURN_REDIS_URL: 'redis_url'"),
    ],
)
def test_a_bad_secret_is_hidden(file: Path, env: dict[str, str], problem: str) -> None:
    text = refusal(file, "", **env)

    assert problem in text
    assert "hush" not in text


@pytest.mark.parametrize("key", ["bot_token", "app_token", "signing_secret"])
def test_a_secret_does_not_belong_in_the_file(file: Path, key: str) -> None:
    text = refusal(file, f"slack:\n  {key}: hush")

    assert f"keyturn.yml:2: 'slack.{key}' is a secret" in text
    assert f"set SLACK_{key.upper()} in the environment" in text
    assert "hush" not in text


def test_settings_never_print_a_secret(file: Path) -> None:
    settings = load(
        file,
        "",
        SLACK_BOT_TOKEN="xoxb-hush",
        SLACK_APP_TOKEN="xapp-hush",
        SLACK_SIGNING_SECRET="hush",
        KEYTURN_SECRET=SECRET,
        KEYTURN_REDIS_URL="redis://u:hush@h",
        KEYTURN_CHECKPOINTS="postgres://u:hush@h/db",
    )

    shown = f"{settings!r} {settings} {settings.model_dump_json()}"
    assert "hush" not in shown
    assert SECRET not in shown
    assert settings.checkpoint_place == "postgres://u:hush@h/db"


@pytest.mark.parametrize(
    ("mode", "env", "missing"),
    [
        ("socket", {}, ["SLACK_BOT_TOKEN", "SLACK_APP_TOKEN"]),
        ("http", {}, ["SLACK_BOT_TOKEN", "SLACK_SIGNING_SECRET"]),
        ("socket", {"SLACK_BOT_TOKEN": "xoxb-1"}, ["SLACK_APP_TOKEN"]),
        ("http", {"SLACK_SIGNING_SECRET": "s", "SLACK_BOT_TOKEN": "xoxb-1"}, []),
    ],
)
def test_what_slack_mode_lacks_is_said_with_where_to_find_it(
    file: Path, mode: str, env: dict[str, str], missing: list[str]
) -> None:
    problems = load(file, f"slack: {{mode: {mode}}}", **env).slack_problems()

    assert [problem.split()[0] for problem in problems] == missing
    assert all("your app's page" in problem for problem in problems)


def test_older_secrets_follow_the_one_in_use(file: Path) -> None:
    other = "f" * 64
    given = load(file, "", KEYTURN_SECRET=f"{SECRET}, {other}").secret_keys()
    [old] = load(file, "").secret_keys()
    folder = file.parent / ".keyturn"
    (folder / "secret.key").rename(folder / "secret.old.key")

    new, kept = load(file, "").secret_keys()

    assert given == (bytes.fromhex(SECRET), bytes.fromhex(other))
    assert kept == old != new
    assert "64 hex digits" in refusal(file, "", KEYTURN_SECRET=f"{SECRET},")
    (folder / "secret.old.key").chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        load(file, "").secret_keys()


def test_a_run_is_retried_for_as_long_as_the_settings_say(file: Path) -> None:
    given = "limit: 24h, unknown_limit: 15m, first: 500ms, longest: 60s"

    assert load(file, f"retries: {{{given}}}").retries == RetrySettings()
    retries = load(file, "retries: {limit: 2d, first: 2s}").retries
    assert (retries.limit.days, retries.first.seconds) == (2, 2)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("7d", timedelta(days=7)), ("400d", timedelta(days=400)), ("never", None)],
)
def test_messages_are_kept_for_days(given: str, kept: timedelta | None) -> None:
    found = RetentionSettings.model_validate({"messages": given})

    assert found.messages == kept
    assert found.audit == AUDIT_KEPT


@pytest.mark.parametrize("given", ["0d", "12h", "", "always", 30])
def test_another_time_for_messages_is_a_mistake(given: object) -> None:
    with pytest.raises(ValidationError):
        RetentionSettings.model_validate({"messages": given})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("retention: {messages: 1h}", "write 1d or more, or never"),
        ("retention: {audit: 1h}", "write 30d or more"),
        ("retries: {limit: soon}", "'soon' is not a duration; write 90s"),
        ("retries: {limit: 500ms}", "'500ms' is not a duration"),
        ("retries: {limit: 31d}", "'31d' is longer than 30 days"),
        ("audit_folder: 3", "'audit_folder': write the name of a file or folder"),
        (
            "webhooks: {targets: {A b: {url: 'https://x.test/', agents: [b]}}}",
            "'A b' is no name of a target; write up to 40 lower-case letters",
        ),
        (
            (
                "webhooks: {targets: {b: {url: 'https://x.test/', agents: [b], "
                "secrets: [1, 2, 3, 4]}}}"
            ),
            "'webhooks.targets.b.secrets': write at most 3",
        ),
    ],
)
def test_what_to_write_instead_is_said(file: Path, text: str, what: str) -> None:
    assert what in refusal(file, text)


ROOT = Path(__file__).parents[1]
ZONES = ["UTC", "Europe/London", "Pacific/Auckland", "Asia/Kathmandu"]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)),  # noqa: DTZ001 - it gets its zone
    st.sampled_from(get_args(Day)),
    st.sampled_from(["00:00", "02:30", "23:59"]),
    st.sampled_from(ZONES),
)
def test_the_newest_digest_was_due_within_the_week(
    at: datetime, day: Day, clock: str, zone: str
) -> None:
    now = at.replace(tzinfo=UTC)
    digest = DigestSettings(day=day, at=clock, zone=ZoneInfo(zone))

    due = digest.last_due(now)

    assert due.astimezone(UTC) <= now
    # An hour more where the clock was put back within the week.
    assert now - due.astimezone(UTC) < timedelta(days=7, hours=1)
    assert f"{due:%a}".lower() == day
    assert f"{due:%H:%M}" == clock


def test_a_week_is_seven_whole_days_on_the_clock() -> None:
    digest = DigestSettings(zone=ZoneInfo("Europe/London"))
    due = digest.last_due(datetime(2026, 10, 26, 12, tzinfo=UTC))

    since, until = digest.week_of(due)

    # The clock was put back on Sunday.
    assert until.astimezone(UTC) - since.astimezone(UTC) == timedelta(days=7, hours=1)
    assert since == datetime(2026, 10, 19, tzinfo=ZoneInfo("Europe/London"))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"digest": {"day": "today"}}, "'mon', 'tue'"),
        ({"digest": {"at": "9am"}}, "match"),
        ({"digest": {"zone": "Mars"}}, "invalid timezone: Mars"),
        ({"alert": {"corrected": "half"}}, "'half' is not a share"),
        ({"channel": "general"}, "match"),
    ],
)
def test_a_mistake_is_named(written: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        MetricsSettings.model_validate(written)


def test_the_settings_of_the_docs_are_read(tmp_path: Path) -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    _, _, block = page.partition("```yaml\n")
    (tmp_path / "keyturn.yml").write_text(block.partition("```")[0])

    found = Settings.load(tmp_path / "keyturn.yml", {}).metrics

    assert found.digest == DigestSettings(zone=ZoneInfo("Europe/London"))
    assert found.channel == "#agent-approvals"
