"""Configuration of the bot, as immutable values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from keyturn.bot.ids import COMMAND
from keyturn.gateway.config import SlackMode
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.service_settings import MetricsSettings
from keyturn.gateway.setting_forms import MESSAGES_KEPT

SLACK_API = "https://slack.com/api/"

_LEAST_KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BotConfig:
    """The bot's settings; secrets never show in its repr.

    Attributes:
        bot_token: ``xoxb-…``, from "OAuth & Permissions".
        mode: signed HTTP, or Socket Mode.
        signing_secret: needed in HTTP mode, from "Basic Information".
        app_token: ``xapp-…`` with ``connections:write``, needed in Socket Mode.
        seal_key: seals button values.
        old_seal_keys: earlier keys, whose seals are still accepted.
        team: the only workspace to serve; empty means that of the bot token.
        tenant: owner of the approvals.
        agents: names that a person may put first in a message to the bot.
        default_agent: the agent for messages without a name.
        command: the app's slash command.
        fallback_channel: for cards that their channel refuses; empty for none.
        metrics: the posted digest and alerts.
        messages_kept: time after the end of an approval at which its messages are
            redacted; None: never.
        api_url: of Slack's Web API.
        host: interface to listen on.
        port: 0 takes any free one. None is 3000 by HTTP, and no port in Socket Mode,
            where it serves only the health endpoints.
        sockets: connections in Socket Mode; two, so that one can be replaced.
    """

    bot_token: str = field(repr=False)
    mode: SlackMode = SlackMode.SOCKET
    signing_secret: str = field(default="", repr=False)
    app_token: str = field(default="", repr=False)
    seal_key: bytes = field(repr=False)
    old_seal_keys: tuple[bytes, ...] = field(default=(), repr=False)
    team: str = ""
    tenant: str = "default"
    agents: tuple[str, ...] = ()
    default_agent: str = ""
    command: str = COMMAND
    fallback_channel: str = ""
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    messages_kept: timedelta | None = MESSAGES_KEPT
    api_url: str = SLACK_API
    host: str = "127.0.0.1"
    port: int | None = None
    sockets: int = 2

    def __post_init__(self) -> None:
        """Refuse invalid settings.

        Raises:
            SettingsError: names the setting and where to find its value.
        """
        _need_token("bot_token", self.bot_token, "xoxb-", "OAuth & Permissions")
        if self.mode is SlackMode.SOCKET:
            _need_token("app_token", self.app_token, "xapp-", "Basic Information")
        elif not self.signing_secret.strip():
            raise SettingsError(
                "signing_secret is empty, so nobody could tell Slack's requests from "
                "forged ones; set SLACK_SIGNING_SECRET (api.slack.com/apps, "
                "Basic Information), or use Socket Mode."
            )
        # A short key could be found offline from one button value, which every member
        # of the channel can read.
        if len(self.seal_key) < _LEAST_KEY_BYTES:
            raise SettingsError(
                f"seal_key has {len(self.seal_key)} bytes; use "
                f"{_LEAST_KEY_BYTES} or more random ones."
            )

    @property
    def seal_keys(self) -> tuple[bytes, ...]:
        """Return every key whose seals are accepted, the one that seals first."""
        return (self.seal_key, *self.old_seal_keys)


def _need_token(name: str, value: str, prefix: str, page: str) -> None:
    if value.startswith(prefix):
        return
    found = "is empty" if not value else f"does not start with {prefix!r}"
    raise SettingsError(
        f"{name} {found}; set SLACK_{name.upper()} to the one on "
        f"api.slack.com/apps, {page!r}."
    )
