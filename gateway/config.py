"""Load process settings from ``keyturn.yml`` and environment variables.

Secrets come from the environment only, and no error shows one. `SettingsFile` lists the
settings, and `keyturn.gateway.config.VARIABLES` their environment variables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    SecretStr,
    ValidationInfo,
)

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
from keyturn.gateway.secret_file import folder_secrets, parse_secrets
from keyturn.gateway.service_settings import (
    ApiSettings,
    HookSettings,
    MetricsSettings,
    ServerSettings,
    WebhookSettings,
)
from keyturn.gateway.setting_forms import (
    AgentName,
    ChannelName,
    CheckpointPlace,
    CommandName,
    FolderPath,
    KeySettings,
    ObjectRef,
    OrganizationId,
    RetentionSettings,
    RetrySettings,
    SafeUrl,
    SettingsModel,
    TeamId,
    TenantName,
)
from keyturn.gateway.validation_errors import dotted

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
    "KEYTURN_METRICS_LISTEN": ("metrics", "listen"),
    "KEYTURN_LOG_LEVEL": ("log", "level"),
    "KEYTURN_LOG_FORMAT": ("log", "format"),
}
"""Environment variable to the setting it overrides; an empty variable is ignored."""

SECRETS: Final[Mapping[str, str]] = {
    "KEYTURN_SECRET": "secret",
    "SLACK_BOT_TOKEN": "bot_token",
    "SLACK_APP_TOKEN": "app_token",
    "SLACK_SIGNING_SECRET": "signing_secret",
    "SLACK_CLIENT_SECRET": "client_secret",
}
"""Environment variable to the name of the secret; none of them may be in a file."""

OF_AGENTS: Final = ("KEYTURN_GATEWAY", "KEYTURN_API_KEY", "KEYTURN_WEBHOOK_SECRET")
"""Variables of an agent in another process (`keyturn.gateway.client.http_gateway` and
`keyturn.gateway.remote.program`).
"""

_TOKENS: Final[Mapping[str, tuple[str, str]]] = {
    "SLACK_BOT_TOKEN": (
        "xoxb-",
        (
            "copy the Bot User OAuth Token from your app's page 'OAuth & Permissions' "
            "(of an app without token rotation)"
        ),
    ),
    "SLACK_APP_TOKEN": (
        "xapp-",
        "create one with connections:write on your app's page 'Basic Information'",
    ),
    "SLACK_SIGNING_SECRET": ("", "copy it from your app's page 'Basic Information'"),
    "SLACK_CLIENT_SECRET": ("", "copy it from your app's page 'Basic Information'"),
}
"""Beginning of each token, and where to find it."""


def refuse_misspelled(env: Mapping[str, str]) -> None:
    """Refuse ``KEYTURN_REDIS_ULR``: ignoring it would start another store.

    Raises:
        BadDocument: suggests the variable with the nearest name.
    """
    known = [*VARIABLES, *SECRETS, *OF_AGENTS]
    for name in sorted(env):
        if not name.startswith(("KEYTURN_", "SLACK_")) or name in known:
            continue
        # One or two wrong letters in a long name, or a known name without its last
        # word. Other programs have variables with these prefixes, which must be
        # ignored: Slack's tools, and Kubernetes, which names services like
        # KEYTURN_REDIS_PORT.
        least = 0.86 if name.startswith("KEYTURN_") else 0.9
        close = difflib.get_close_matches(name, known, n=1, cutoff=least)
        if close:
            text = f"This variable is not known; did you mean {close[0]!r}?"
            raise BadDocument([Problem(name, text)])


def secrets_in(env: Mapping[str, str]) -> dict[str, SecretStr]:
    """Return the secrets in an environment, by their names.

    Raises:
        SettingsError: a variable has an unusable value.
    """
    found = {
        secret: SecretStr(env[name])
        for name, secret in SECRETS.items()
        if env.get(name)
    }
    # At the start and not at the first click: an unusable key seals nothing.
    if "secret" in found:
        parse_secrets(found["secret"].get_secret_value())
    for name, (prefix, where) in _TOKENS.items():
        # With a blank in the signing secret the bot would start, and refuse each click.
        if env.get(name) and not re.fullmatch(f"{prefix}[!-~]+", env[name]):
            begins = f"has to begin with {prefix!r}, and " if prefix else ""
            raise SettingsError(
                f"{name} {begins}cannot have blanks or line breaks; {where}."
            )
    return found


DEFAULT_FILE = Path("keyturn.yml")

_NO_POLICY = (
    "Write one there (docs/policy.md begins with a small one), or name yours with "
    "'policy' in keyturn.yml. If that file is elsewhere, start there or name it (-c)."
)
MAX_WORKERS = 256
_STORE = re.compile(r"unix|rediss?(\+sentinel|\+cluster)?")


def _redis_url(url: SecretStr) -> SecretStr:
    if _STORE.fullmatch(urlsplit(url.get_secret_value()).scheme) is None:
        raise ValueError(
            "this is no Redis URL; write redis://host:6379/0, rediss://…, unix:///…, "
            "redis+sentinel://host:26379,…/name or redis+cluster://host:6379,…."
        )
    return url


class PolicySource(NamedTuple):
    """Source of the policy: a separate file, or a key of ``keyturn.yml``."""

    path: Path
    under: str = ""

    def read(self) -> str:
        """Return the current text of the file.

        Raises:
            SettingsError: it cannot be read.
        """
        return read_text(self.path, "the policy", hint=_NO_POLICY)


def _policy(value: object, info: ValidationInfo) -> PolicySource:
    source = info.context or DEFAULT_FILE
    if isinstance(value, str):
        return PolicySource(source.parent / value)
    if isinstance(value, dict):
        return PolicySource(source, under="policy")
    raise ValueError("write the name of a policy file, or the policy itself.")


class SlackMode(StrEnum):
    """Connection from Slack to the bot."""

    SOCKET = "socket"
    HTTP = "http"


class AgentSettings(SettingsModel):
    """One agent: its graph as ``file.py:name``, and tools that need no gate in it.

    ``own_gate`` is for a graph that nobody edits: its own middleware asks people.
    """

    graph: ObjectRef
    ungated: tuple[str, ...] = ()
    own_gate: bool = False


class SlackSettings(SettingsModel):
    """Connection to Slack; ``port`` None is 3000 for HTTP and unused in Socket Mode.

    ``fallback_channel`` gets a card if its own channel refuses it. ``team`` is the only
    workspace to serve; empty is the bot token's workspace.

    ``workspaces`` are the settings files of gateways, each for one workspace: people
    install the app there, and one bot serves all of them. It needs the bot's public
    ``url`` and the app's ``client_id``. In such a file, ``team`` is the workspace, and
    ``organization`` accepts an installation of its whole organization.
    """

    mode: SlackMode = SlackMode.SOCKET
    host: str = "127.0.0.1"
    port: int | None = Field(default=None, ge=0, le=65535)
    command: CommandName = "/approvals"
    api_url: Annotated[SafeUrl, AfterValidator(lambda url: f"{url.rstrip('/')}/")] = (
        "https://slack.com/api/"
    )
    fallback_channel: ChannelName = ""
    team: TeamId = ""
    organization: OrganizationId = ""
    url: Annotated[SafeUrl, AfterValidator(lambda url: url.rstrip("/"))] | None = None
    client_id: str = Field(default="", pattern=r"^([0-9]+\.[0-9]+)?$")
    workspaces: tuple[FolderPath, ...] = ()


class SettingsFile(SettingsModel):
    """The shape of ``keyturn.yml``.

    Attributes:
        tenant: owner of the approvals.
        agents: name to its graph, as an absolute ``file.py:name`` or ``module:name``.
        triage: the triage for calls that the policy selects, named like a graph; None
            for none.
        policy: source of the policy; loaded by `keyturn.gateway.policy.load`.
        data_dir: folder of the embedded store, checkpoints and the secret file.
        redis_url: the store; None is the embedded one in ``data_dir``.
        checkpoints: path of a SQLite file, or a ``postgresql://`` URL; None is a file
            in ``data_dir``.
        encrypt_store: encrypt texts in the store.
        workers: number of agent threads that are resumed at the same time.
        retention: retention time of the audit log and of messages.
        audit_folder: folder of the audit log, which leaves the store; None keeps it in
            the store as well.
        retries: retry limits for failed runs.
        slack: connection to Slack.
        metrics: digest and alerts, and their channel.
        keys: folder of the signing keys, and public keys of other processes.
        api: access of agents in other processes to the gateway.
        hooks: calls of coding agents.
        webhooks: programs to notify of decisions in their threads.
        servers: Agent Servers of LangGraph whose agents people decide about.
        log: level and format of the log of ``keyturn run`` and its parts on stderr.
    """

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
    hooks: HookSettings = HookSettings()
    webhooks: WebhookSettings = WebhookSettings()
    servers: dict[TenantName, ServerSettings] = Field(default_factory=dict)
    agents: dict[AgentName, AgentSettings] = Field(default_factory=dict)
    triage: ObjectRef | None = None
    policy: Annotated[PolicySource, BeforeValidator(_policy)] = Field(
        default="policy.yml", validate_default=True
    )
    data_dir: FolderPath = Field(default=Path(".keyturn"), validate_default=True)
    checkpoints: CheckpointPlace | None = None
    audit_folder: FolderPath | None = None


class Settings(SettingsFile):
    """All settings of one process: those of the file, and of the environment.

    Attributes:
        folder: base of relative names: the settings file's folder.
        secret: keys from the environment that seal buttons, the current one first.
        bot_token: Slack's, as the next three.
    """

    folder: Path = Path()
    secret: SecretStr | None = None
    bot_token: SecretStr | None = None
    app_token: SecretStr | None = None
    signing_secret: SecretStr | None = None
    client_secret: SecretStr | None = None

    @classmethod
    def load(cls, path: Path | None, env: Mapping[str, str]) -> Settings:
        """Read the settings.

        Args:
            path: the file; None is ``keyturn.yml`` in this folder, if it exists.
            env: the environment of the process.

        Raises:
            SettingsError: one sentence for each problem, with the setting's name.
        """
        source = path or DEFAULT_FILE
        is_there = path is not None or source.exists()
        hint = "Write it, or name another one with --config."
        text = read_text(source, "the settings", hint=hint) if is_there else ""
        document = parse_yaml(text, str(source))
        # Before the model, which would only report an unknown key.
        _refuse_secrets(document)
        found = read_model(_overlaid(document, env), SettingsFile, context=source)
        folder = source.parent.resolve()
        values: dict[str, Any] = {**vars(found), "folder": folder, **secrets_in(env)}
        return cls.model_construct(**values)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Return the agents of this process, and those on Agent Servers."""
        graphs = [it for one in self.servers.values() for it in one.graphs.values()]
        return tuple(dict.fromkeys([*self.agents, *(it.agent for it in graphs)]))

    @property
    def store_url(self) -> str | None:
        """Return the address of the store; None for the embedded one."""
        return self.redis_url.get_secret_value() if self.redis_url else None

    @property
    def checkpoint_place(self) -> str:
        """Return the path of a SQLite file, or the URL of a Postgres database."""
        default = str(self.data_dir / "checkpoints.sqlite")
        return self.checkpoints.get_secret_value() if self.checkpoints else default

    @property
    def audit(self) -> tuple[timedelta, Path | None]:
        """Return the audit log's retention time and the folder of its segments."""
        return self.retention.audit, self.audit_folder

    def secret_keys(self) -> tuple[bytes, ...]:
        """Return the keys of buttons: the sealing key, then others to accept.

        They come from the environment, or else from ``data_dir/secret.key``, which is
        created at the first start, and ``secret.old.key``, if it exists.

        Raises:
            SettingsError: a file cannot be used as a secret.
        """
        if self.secret is not None:
            return parse_secrets(self.secret.get_secret_value())
        return folder_secrets(self.data_dir)

    def slack_problems(self) -> tuple[str, ...]:
        """Return the secrets that the Slack mode lacks, with next steps."""
        is_socket = self.slack.mode is SlackMode.SOCKET
        needed = ["SLACK_BOT_TOKEN"]
        if self.slack.workspaces:
            needed = ["SLACK_CLIENT_SECRET"]
        needed.append("SLACK_APP_TOKEN" if is_socket else "SLACK_SIGNING_SECRET")
        missing = [
            f"{name} is not set; {_TOKENS[name][1]}."
            for name in needed
            if getattr(self, SECRETS[name]) is None
        ]
        return (
            *missing,
            *(self._workspace_problems() if self.slack.workspaces else ()),
        )

    def _workspace_problems(self) -> Iterator[str]:
        slack = self.slack
        if slack.mode is SlackMode.SOCKET:
            yield "Slack installs the app by HTTPS; set 'slack.mode: http'."
        if slack.url is None:
            yield "'slack.url' is not set; write the bot's public https:// address."
        if not slack.client_id:
            yield (
                "'slack.client_id' is not set; copy the Client ID from your app's page "
                "'Basic Information'."
            )
        if self.secret is None:
            yield (
                "KEYTURN_SECRET is not set, and it encrypts the tokens of the "
                "workspaces; make one with 'openssl rand -hex 32', and give it to the "
                "bot and to the gateways of all workspaces."
            )


def text_of(secret: SecretStr | None) -> str:
    """Return the text of a secret; "" if it is not set."""
    return secret.get_secret_value() if secret else ""


def _refuse_secrets(document: Document) -> None:
    problems = [
        document.problem(
            path,
            f"{dotted(path)!r} is a secret and does not belong in a file; set {name} "
            "in the environment, and replace the secret if the file was shared.",
        )
        for path in document.lines
        for name, secret in SECRETS.items()
        if path in {(secret,), ("slack", secret)}
    ]
    if problems:
        raise BadDocument(problems)


def _overlaid(document: Document, env: Mapping[str, str]) -> Document:
    """Return a document whose values are replaced by those of the environment."""
    refuse_misspelled(env)
    # An empty variable counts as missing: shells and compose files pass such variables.
    variables: dict[tuple[str | int, ...], str] = {}
    value = document.value
    for name, path in VARIABLES.items():
        if text := env.get(name):
            value, variables[path] = _with(value, path, text), name
    return replace(document, value=value, variables=variables)


def _with(value: JsonValue, path: tuple[str, ...], text: str) -> JsonValue:
    if not path:
        return text
    inner = {} if value is None else value
    if not isinstance(inner, dict):
        return value  # reported with its line
    return {**inner, path[0]: _with(inner.get(path[0]), path[1:], text)}
