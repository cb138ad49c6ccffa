"""Load process settings from ``keyturn.yml`` and environment variables.

Secrets come from the environment only, and no error shows one. What may be set, and by
which variable, is `SettingsFile` and `keyturn.gateway.config.VARIABLES`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    ValidationError,
)

from keyturn.gateway.api_settings import ApiSettings
from keyturn.gateway.documents import (
    BadDocument,
    Document,
    Problem,
    parse_yaml,
    read_model,
    read_text,
)
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.logs import LogSettings
from keyturn.gateway.metrics_settings import MetricsSettings
from keyturn.gateway.retrying import RetrySettings
from keyturn.gateway.secret_file import folder_secrets, parse_secrets
from keyturn.gateway.setting_forms import (
    AgentName,
    ChannelName,
    CommandName,
    GraphRef,
    KeySettings,
    RetentionSettings,
    TeamId,
    TenantName,
    TriageRef,
    checked_place,
    is_postgres,
)
from keyturn.gateway.validation_errors import dotted, sentence
from keyturn.gateway.webhook_settings import WebhookSettings

VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "KEYTURN_TENANT": ("tenant",),
    "KEYTURN_DATA_DIR": ("data_dir",),
    "KEYTURN_AUDIT_FOLDER": ("audit_folder",),
    "KEYTURN_REDIS_URL": ("redis_url",),
    "KEYTURN_ENCRYPT_STORE": ("encrypt_store",),
    "KEYTURN_CHECKPOINTS": ("checkpoints",),
    "KEYTURN_POLICY": ("policy",),
    "KEYTURN_WORKERS": ("workers",),
    "KEYTURN_SLACK_MODE": ("slack", "mode"),
    "KEYTURN_SLACK_HOST": ("slack", "host"),
    "KEYTURN_SLACK_PORT": ("slack", "port"),
    "KEYTURN_SLACK_COMMAND": ("slack", "command"),
    "KEYTURN_SLACK_API_URL": ("slack", "api_url"),
    "KEYTURN_SLACK_FALLBACK_CHANNEL": ("slack", "fallback_channel"),
    "KEYTURN_SLACK_TEAM": ("slack", "team"),
    "KEYTURN_API_LISTEN": ("api", "listen"),
    "KEYTURN_LOG_LEVEL": ("log", "level"),
    "KEYTURN_LOG_FORMAT": ("log", "format"),
}
"""Environment variable to the setting it overrides; an empty variable is not set."""

SECRETS: Final[Mapping[str, str]] = {
    "KEYTURN_SECRET": "secret",
    "SLACK_BOT_TOKEN": "bot_token",
    "SLACK_APP_TOKEN": "app_token",
    "SLACK_SIGNING_SECRET": "signing_secret",
}
"""Environment variable to the name of the secret; none of them may be in a file."""

OF_AGENTS: Final = ("KEYTURN_GATEWAY", "KEYTURN_API_KEY", "KEYTURN_WEBHOOK_SECRET")
"""What an agent in another process reads (`keyturn.gateway.client.http_gateway`, and
`keyturn.gateway.remote.program`)."""

_WHERE: Final[Mapping[str, str]] = {
    "SLACK_BOT_TOKEN": (
        "copy the Bot User OAuth Token (xoxb-…) from your app's page "
        "'OAuth & Permissions'"
    ),
    "SLACK_APP_TOKEN": (
        "create an app-level token (xapp-…) with connections:write on your app's page "
        "'Basic Information'"
    ),
    "SLACK_SIGNING_SECRET": "copy it from your app's page 'Basic Information'",
}

_NO_TOKEN = re.compile(r"[^!-~]")
"""What is in no token of Slack, and comes from copying: blanks and line breaks."""


def refuse_misspelled(env: Mapping[str, str]) -> None:
    """Refuse ``KEYTURN_REDIS_ULR``: silence would start another store.

    Raises:
        BadDocument: names the variable that was probably meant.
    """
    known = [*VARIABLES, *SECRETS, *OF_AGENTS]
    for name in sorted(env):
        if not name.startswith(("KEYTURN_", "SLACK_")) or name in known:
            continue
        # One or two letters of a long name, or one of our names without its last word.
        # Other programs have variables of these prefixes, which are none of our
        # business: tools of Slack, and Kubernetes, which names services so
        # (KEYTURN_REDIS_PORT).
        least = 0.86 if name.startswith("KEYTURN_") else 0.9
        close = difflib.get_close_matches(name, known, n=1, cutoff=least)
        if close:
            text = f"This variable is not known; did you mean {close[0]!r}?"
            raise BadDocument([Problem(name, text)])


def not_set(name: str) -> str:
    """Say that a secret is not set, and where it is to be found."""
    return f"{name} is not set; {_WHERE[name]}."


def secrets_in(env: Mapping[str, str]) -> dict[str, SecretStr]:
    """Return the secrets that an environment holds, by their names.

    Raises:
        SettingsError: when one of them cannot be what its variable is for.
    """
    found = {
        secret: SecretStr(env[name])
        for name, secret in SECRETS.items()
        if env.get(name)
    }
    # At the start and not at the first click: a key that cannot be used seals nothing.
    if "secret" in found:
        parse_secrets(found["secret"].get_secret_value())
    for name in _WHERE:
        # With a blank in the signing secret the bot would start, and refuse each click.
        if strange := _NO_TOKEN.search(env.get(name, "")):
            raise SettingsError(
                f"{name} has a blank, a line break or another character that is in no "
                f"token, at place {strange.start() + 1}; remove it, or {_WHERE[name]}."
            )
    for name, prefix in (("SLACK_BOT_TOKEN", "xoxb-"), ("SLACK_APP_TOKEN", "xapp-")):
        # https://docs.slack.dev/authentication/using-token-rotation
        if env.get(name, "").startswith("xoxe.xoxb-"):
            raise SettingsError(
                f"{name} is of an app with token rotation, so it ends after 12 hours, "
                "and Keyturn does not renew it. Make an app from the manifest of "
                "'keyturn manifest', which leaves token rotation off."
            )
        if env.get(name) and not env[name].startswith(prefix):
            raise SettingsError(
                f"{name} does not begin with {prefix!r}, so it is another kind of "
                f"token; {_WHERE[name]}."
            )
    return found


DEFAULT_FILE = Path("keyturn.yml")

_NO_POLICY = (
    "Write one there (docs/policy.md begins with a small one), or name yours with "
    "'policy' in keyturn.yml. If that file is elsewhere, start there or name it (-c)."
)
MAX_WORKERS = 256
# The only hosts to which a token may travel without TLS: nothing leaves the machine.
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_STORE = re.compile(r"unix|rediss?(\+sentinel|\+cluster)?")


def _redis_url(url: SecretStr) -> SecretStr:
    if _STORE.fullmatch(urlsplit(url.get_secret_value()).scheme) is None:
        raise ValueError(
            "this is no Redis URL; write redis://host:6379/0, rediss://…, unix:///…, "
            "redis+sentinel://host:26379,…/name or redis+cluster://host:6379,…."
        )
    return url


def _api_url(url: str) -> str:
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname in _LOOPBACK
    )
    if not is_safe or not parts.hostname:
        raise ValueError(
            f"{url!r} would carry tokens in the clear or nowhere; "
            "write https://…, or http:// on this machine."
        )
    return url.rstrip("/") + "/"


def _policy(value: JsonValue) -> JsonValue:
    if not isinstance(value, dict | str):
        raise ValueError("write the name of a policy file, or the policy itself.")  # noqa: TRY004 - pydantic turns only ValueError into a problem
    return value


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class PolicySource(_Model):
    """Where the policy stands: a file of its own, or a key of ``keyturn.yml``."""

    path: Path
    under: str = ""

    def read(self) -> str:
        """Return the text of the file, as it is now.

        Raises:
            SettingsError: when it cannot be read.
        """
        return read_text(self.path, "the policy", hint=_NO_POLICY)


class SlackMode(StrEnum):
    """How Slack reaches the bot."""

    SOCKET = "socket"
    HTTP = "http"


class AgentSettings(_Model):
    """One agent: its graph as ``file.py:name``, and tools that need no gate in it."""

    graph: GraphRef
    ungated: tuple[str, ...] = ()


class SlackSettings(_Model):
    """How to reach Slack; ``port`` None is 3000 by HTTP and none in Socket Mode.

    ``fallback_channel`` takes a card that its own channel refuses. ``team`` is the only
    workspace to serve; empty is that of the bot token.
    """

    mode: SlackMode = SlackMode.SOCKET
    host: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)
    command: CommandName = "/approvals"
    api_url: Annotated[str, AfterValidator(_api_url)] = "https://slack.com/api/"
    fallback_channel: ChannelName = ""
    team: TeamId = ""


class _AsWritten(_Model):
    """What a process takes as the file says it."""

    tenant: TenantName = "default"
    redis_url: Annotated[SecretStr, AfterValidator(_redis_url)] | None = None
    encrypt_store: bool = False
    workers: int = Field(default=8, ge=1, le=MAX_WORKERS)
    retention: RetentionSettings = RetentionSettings()
    retries: RetrySettings = RetrySettings()
    slack: SlackSettings = SlackSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    keys: KeySettings = KeySettings()
    api: ApiSettings = ApiSettings()
    webhooks: WebhookSettings = WebhookSettings()


class SettingsFile(_AsWritten):
    """The shape of ``keyturn.yml``; ``graphs`` is the shape of ``langgraph.json``."""

    agents: dict[AgentName, AgentSettings] = Field(default_factory=dict)
    graphs: dict[AgentName, GraphRef] = Field(default_factory=dict)
    triage: TriageRef | None = None
    policy: Annotated[JsonValue, AfterValidator(_policy)] = "policy.yml"
    data_dir: Path = Path(".keyturn")
    checkpoints: Annotated[SecretStr, AfterValidator(checked_place)] | None = None
    audit_folder: Path | None = None


class SlackSecrets(_Model):
    """What proves the bot to Slack and Slack to the bot."""

    bot_token: SecretStr | None = None
    app_token: SecretStr | None = None
    signing_secret: SecretStr | None = None


class Settings(_AsWritten):
    """Everything one process needs to know before it starts.

    Attributes:
        folder: where relative names start from: the one of the settings file.
        tenant: whose approvals these are.
        agents: name to its graph, as an absolute ``file.py:name`` or ``module:name``.
        triage: what the policy puts calls to, named like a graph; None for nothing.
        policy: where the policy stands; loaded by `keyturn.gateway.policy.load`.
        data_dir: where the embedded store, checkpoints and the secret file live.
        redis_url: the store; None is the embedded one in ``data_dir``.
        checkpoints: path of a SQLite file, or a ``postgresql://`` URL.
        encrypt_store: whether texts are encrypted in the store.
        workers: how many threads of agents are resumed at the same time.
        retention: how long the audit log is kept.
        audit_folder: where sealed segments of the audit log go; None keeps all of it in
            the store.
        retries: how long a run that fails is retried.
        slack: how to reach Slack.
        metrics: which digest and alerts the bot posts, and where.
        keys: where the signing keys are, and others' public keys.
        api: how agents in other processes reach the gateway.
        webhooks: which of them are told that their threads have decisions.
        log: what ``keyturn run`` and its parts write to stderr, and how.
        slack_secrets: tokens and the signing secret.
        secret: keys from the environment that seal buttons, the one in use first.
    """

    folder: Path
    agents: dict[str, AgentSettings]
    triage: str | None
    policy: PolicySource
    data_dir: Path
    audit_folder: Path | None
    checkpoints: SecretStr
    slack_secrets: SlackSecrets
    secret: SecretStr | None

    @classmethod
    def load(cls, path: Path | None, env: Mapping[str, str]) -> Settings:
        """Read the settings.

        Args:
            path: the file; None is ``keyturn.yml`` here, or none when there is none.
            env: the environment of the process.

        Raises:
            SettingsError: one sentence a problem, with the setting's name.
        """
        source = path or DEFAULT_FILE
        is_there = path is not None or source.exists()
        hint = "Write it, or name another one with --config."
        text = read_text(source, "the settings", hint=hint) if is_there else ""
        try:
            document = parse_yaml(text, str(source))
            # Before the model is read, which would only call it an unknown key.
            _refuse_secrets(document)
            # Validated twice: here, so that problems have lines of the file; with the
            # environment over it, problems name the variable.
            read_model(document, SettingsFile)
            settings = _overlaid(document, env)
        except BadDocument as error:
            raise SettingsError(str(error)) from error
        return _resolved(settings, source, secrets_in(env))

    @property
    def store_url(self) -> str | None:
        """Return the address of the store; None for the embedded one."""
        return self.redis_url.get_secret_value() if self.redis_url else None

    @property
    def audit(self) -> tuple[timedelta, Path | None]:
        """Return for how long the audit log is kept, and where its segments are."""
        return self.retention.audit, self.audit_folder

    def secret_keys(self) -> tuple[bytes, ...]:
        """Return the keys of buttons: the one that seals, then others to accept.

        They are the environment's, or else ``data_dir/secret.key``, which is created
        at the first start, and ``secret.old.key`` when it is there.

        Raises:
            SettingsError: when a file cannot be used as a secret.
        """
        if self.secret is not None:
            return parse_secrets(self.secret.get_secret_value())
        return folder_secrets(self.data_dir)

    def slack_problems(self) -> tuple[str, ...]:
        """Return which secrets the Slack mode needs and lacks, with next steps."""
        secrets, mode = self.slack_secrets, self.slack.mode
        problems: list[str] = []
        if secrets.bot_token is None:
            problems.append(not_set("SLACK_BOT_TOKEN"))
        if mode is SlackMode.SOCKET and secrets.app_token is None:
            problems.append(not_set("SLACK_APP_TOKEN"))
        if mode is SlackMode.HTTP and secrets.signing_secret is None:
            problems.append(not_set("SLACK_SIGNING_SECRET"))
        return tuple(problems)


def _refuse_secrets(document: Document) -> None:
    value = document.value if isinstance(document.value, dict) else {}
    slack = value.get("slack")
    found: list[tuple[str, ...]] = [(key,) for key in value]
    found += [("slack", key) for key in slack] if isinstance(slack, dict) else []
    problems = [
        document.problem(
            path,
            f"{dotted(path)!r} is a secret and does not belong in a file; set {name} "
            "in the environment, and replace the secret if the file was shared.",
        )
        for path in found
        for name, secret in SECRETS.items()
        if path[-1] == secret
    ]
    if problems:
        raise BadDocument(problems)


def _overlaid(document: Document, env: Mapping[str, str]) -> SettingsFile:
    value = dict(document.value) if isinstance(document.value, dict) else {}
    refuse_misspelled(env)
    # An empty variable is one that is not set: shells and compose files pass those on.
    given: dict[tuple[str, ...], str] = {
        path: name for name, path in VARIABLES.items() if env.get(name)
    }
    for path, name in given.items():
        inner = value
        for key in path[:-1]:
            member = inner.get(key)
            # A copy at each level: the document keeps what the file says.
            inner[key] = inner = dict(member) if isinstance(member, dict) else {}
        inner[path[-1]] = env[name]
    try:
        return SettingsFile.model_validate(value)
    except ValidationError as error:
        raise BadDocument(
            Problem(
                given.get(tuple(map(str, details["loc"])), document.source),
                sentence(details, SettingsFile),
            )
            for details in error.errors()
        ) from error


def _resolved(
    settings: SettingsFile, source: Path, secrets: Mapping[str, SecretStr]
) -> Settings:
    base = source.parent.resolve()
    doubled = sorted(settings.agents.keys() & settings.graphs.keys())
    if doubled:
        raise SettingsError(
            f"{source}: agent {doubled[0]!r} is in both 'agents' and 'graphs'; "
            "keep one of them."
        )
    short = {name: AgentSettings(graph=ref) for name, ref in settings.graphs.items()}
    data_dir, folder = base / settings.data_dir.expanduser(), settings.audit_folder
    as_written = {name: getattr(settings, name) for name in _AsWritten.model_fields}
    for name in ("keys", "api", "webhooks"):
        as_written[name] = as_written[name].below(base)
    return Settings(
        **as_written,
        folder=base,
        agents={
            name: agent.model_copy(update={"graph": _absolute(agent.graph, base)})
            for name, agent in {**settings.agents, **short}.items()
        },
        triage=_absolute(settings.triage, base) if settings.triage else None,
        policy=_policy_source(settings, source),
        data_dir=data_dir,
        audit_folder=base / folder.expanduser() if folder else None,
        checkpoints=_checkpoints(settings.checkpoints, base, data_dir),
        slack_secrets=SlackSecrets.model_validate(
            {name: value for name, value in secrets.items() if name != "secret"}
        ),
        secret=secrets.get("secret"),
    )


def _absolute(ref: str, base: Path) -> str:
    file, _, name = ref.rpartition(":")
    # A dotted module has no folder.
    return f"{base / file}:{name}" if file.endswith(".py") else ref


def _policy_source(settings: SettingsFile, source: Path) -> PolicySource:
    if isinstance(settings.policy, str):
        return PolicySource(path=source.parent / settings.policy)
    return PolicySource(path=source, under="policy")


def _checkpoints(given: SecretStr | None, base: Path, data_dir: Path) -> SecretStr:
    text = given.get_secret_value() if given else str(data_dir / "checkpoints.sqlite")
    return SecretStr(text if is_postgres(text) else str(base / text))
