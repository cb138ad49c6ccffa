"""Configuration of the bot, as immutable values."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field, model_validator

from keyturn.gateway.config import SlackMode, SlackSettings
from keyturn.gateway.service_settings import MetricsSettings
from keyturn.gateway.setting_forms import MESSAGES_KEPT


class BotConfig(SlackSettings):
    """The connection to Slack with its secrets, and the bot's other settings.

    `Settings` reports invalid secrets to people. Secrets never show in a repr.

    Attributes:
        bot_token: ``xoxb-…``, from "OAuth & Permissions"; or that of an installation,
            ``xoxe.xoxb-…`` if it expires.
        install_url: page that installs the app again; "" for a token that the operator
            sets.
        signing_secret: needed in HTTP mode, from "Basic Information".
        app_token: ``xapp-…`` with ``connections:write``, needed in Socket Mode.
        seal_keys: keys whose seals of button values are accepted; the first one seals.
        tenant: owner of the approvals.
        agents: names that a person may put first in a message to the bot; the first one
            answers messages without a name.
        metrics: the posted digest and alerts.
        messages_kept: time after the end of an approval at which its messages are
            redacted; None: never.
        sockets: connections in Socket Mode; two, so that one can be replaced.
    """

    bot_token: str = Field(pattern=r"^(xoxe\.)?xoxb-", repr=False)
    install_url: str = ""
    signing_secret: str = Field(default="", repr=False)
    app_token: str = Field(default="", pattern="^(xapp-.+)?$", repr=False)
    # A short key could be found offline from one button value, which every member of
    # the channel can read.
    seal_keys: tuple[Annotated[bytes, Field(min_length=16)], ...] = Field(
        min_length=1, repr=False
    )
    tenant: str = "default"
    agents: tuple[str, ...] = ()
    metrics: MetricsSettings = MetricsSettings()
    messages_kept: timedelta | None = MESSAGES_KEPT
    sockets: int = 2

    @model_validator(mode="after")
    def _complete(self) -> BotConfig:
        # Without its secret, forged requests could not be told from Slack's.
        is_socket = self.mode is SlackMode.SOCKET
        name = "app_token" if is_socket else "signing_secret"
        if not getattr(self, name).strip():
            raise ValueError(f"{name} is empty.")
        return self

    @property
    def seal_key(self) -> bytes:
        """Return the key that seals button values."""
        return self.seal_keys[0]

    @property
    def default_agent(self) -> str:
        """Return the agent for messages without a name; "" for none."""
        return self.agents[0] if self.agents else ""
