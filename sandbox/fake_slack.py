"""Fake Slack: workspace, Web API, transports and clock, wired together."""

import logging
import secrets
from dataclasses import dataclass, field

from keyturn.sandbox.clock import Clock
from keyturn.sandbox.faults import Faults
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.oauth import Installer
from keyturn.sandbox.rate_limits import RateLimits
from keyturn.sandbox.records import Notice, Suggestion
from keyturn.sandbox.response_urls import ResponseUrls
from keyturn.sandbox.tokens import TokenKind, Tokens
from keyturn.sandbox.triggers import Triggers
from keyturn.sandbox.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the Web API; `error` is None if it was answered with ok.

    A call whose response was lost on purpose took effect and has no error.
    """

    method: str
    arguments: JsonObject
    at: float
    error: str | None = None


@dataclass(slots=True)
class FakeSlack:
    """A fake Slack: a workspace, its clock, and all of Slack's counters.

    Attributes:
        calls: every call of the Web API, oldest first.
        joined: other workspaces of the same Slack, in which the same app can be
            installed; the Web API of this one answers for them, too.
        problems: errors of the app that Slack would show to a person only as "trouble
            connecting"; a test should find this empty.
    """

    workspace: Workspace
    clock: Clock
    suggestions: tuple[Suggestion, ...] = ()
    signing_secret: str = field(default_factory=lambda: secrets.token_hex(16))
    base_url: str = ""
    tokens: Tokens = field(default_factory=Tokens)
    faults: Faults = field(default_factory=Faults)
    joined: "list[FakeSlack]" = field(default_factory=list["FakeSlack"])
    calls: list[Call] = field(default_factory=list[Call])
    problems: list[str] = field(default_factory=list[str])
    bot_token: str = field(init=False)
    app_token: str = field(init=False)
    triggers: Triggers = field(init=False)
    response_urls: ResponseUrls = field(init=False)
    rates: RateLimits = field(init=False)
    installer: Installer = field(init=False)

    def __post_init__(self) -> None:
        """Issue the first two tokens and start counting."""
        self.triggers = Triggers(self.clock)
        self.response_urls = ResponseUrls(self.clock)
        self.rates = RateLimits(self.clock)
        self.installer = Installer(self.workspace, self.tokens, self.clock)
        self.bot_token = self.tokens.issue(TokenKind.BOT)
        self.app_token = self.tokens.issue(TokenKind.APP)

    def use_credentials(
        self, bot_token: str, app_token: str, signing_secret: str
    ) -> None:
        """Accept the credentials of an earlier run."""
        self.bot_token = self.tokens.add(bot_token, TokenKind.BOT)
        self.app_token = self.tokens.add(app_token, TokenKind.APP)
        self.signing_secret = signing_secret

    def notify(self, user_id: str, text: str, level: str = "warning") -> None:
        """Show a system message of Slack to one person."""
        notice = Notice(secrets.token_hex(6), text, level, self.clock.now())
        self.workspace.notify(user_id, notice)

    def add_problem(self, problem: str) -> None:
        """Record an error of the app."""
        logger.warning("sandbox.app_problem %s", problem)
        self.problems.append(problem)
