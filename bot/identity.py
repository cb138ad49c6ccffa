"""Ask Slack at the start who the bot is, and say clearly what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from twokey.bot.config import BotConfig
from twokey.bot.manifest import SCOPES
from twokey.bot.web import Slack, SlackError, SlackRefused, text_at
from twokey.gateway.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the bot is, as Slack says."""

    team: str
    enterprise: str
    user: str
    bot_id: str


async def identify(slack: Slack, config: BotConfig) -> Identity:
    """Ask Slack who the bot is and what it may do.

    Raises:
        SettingsError: the token is wrong, of another workspace, or lacks scopes.
    """
    try:
        reply, granted = await slack.test()
    except SlackRefused as error:
        raise SettingsError(
            f"Slack refused SLACK_BOT_TOKEN ({error.error!r}); copy the Bot User OAuth "
            "Token (xoxb-…) from api.slack.com/apps, 'OAuth & Permissions'."
        ) from error
    except SlackError as error:
        raise no_slack(config, error) from error
    missing = sorted(set(SCOPES) - granted) if granted else []
    if missing:
        raise SettingsError(
            f"The bot token lacks the scopes {', '.join(missing)}; add them on "
            "api.slack.com/apps, 'OAuth & Permissions' (or paste manifest.yml anew), "
            "and install the app again."
        )
    team = text_at(reply, "team_id")
    if config.team and team != config.team:
        raise SettingsError(
            f"The bot token is of the workspace {team!r}, the settings want "
            f"{config.team!r}; use the token of that workspace."
        )
    return Identity(
        team=team,
        enterprise=text_at(reply, "enterprise_id"),
        user=text_at(reply, "user_id"),
        bot_id=text_at(reply, "bot_id"),
    )


def no_slack(config: BotConfig, error: SlackError) -> SettingsError:
    """Return what to tell an operator when Slack cannot be reached."""
    return SettingsError(
        f"Slack does not answer at {config.api_url!r} ({error}); check the network, "
        "the proxy, and 'slack.api_url' (TWOKEY_SLACK_API_URL)."
    )
