"""Control API: change the workspace and inject faults, for tests and demos."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

from keyturn.sandbox import payloads
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.delivery import Ack, Delivery
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.oauth import TOKEN_LIFE_S
from keyturn.sandbox.signed_http import Forgery, Received, SignedHttp
from keyturn.sandbox.socket_mode import Sockets
from keyturn.sandbox.tokens import TokenKind


@dataclass(slots=True)
class Control:
    """Operations for tests that no person in Slack can perform.

    Each public method is also a command of `POST /sandbox/control`: its name is the
    value of `do`, next to its parameters. The answer is `{"ok": true, "result": …}`.
    """

    slack: FakeSlack
    delivery: Delivery
    sockets: Sockets
    http: SignedHttp

    async def run(self, command: JsonObject) -> JsonObject:
        """Run one posted command.

        Raises:
            ApiError: `unknown_command` or `invalid_arguments`, with the valid ones.
        """
        arguments = dict(command)
        name = str(arguments.pop("do", ""))
        if name not in COMMANDS:
            raise ApiError("unknown_command", known=sorted(COMMANDS))
        method = cast("Callable[..., object]", getattr(self, name))
        try:
            inspect.signature(method).bind(**arguments)
        except TypeError as error:
            raise ApiError("invalid_arguments", why=str(error)) from None
        try:
            result = method(**arguments)
            if inspect.isawaitable(result):
                result = await cast("Awaitable[object]", result)
        except (ValueError, LookupError) as error:
            raise ApiError("invalid_arguments", why=str(error)) from None
        return {"ok": True, "result": result}

    # Time, rates and faults

    def advance(self, seconds: float) -> None:
        """Move the sandbox's clock forward."""
        self.slack.clock.advance(seconds)

    def rates(self, *, enabled: bool | None = None, scale: float | None = None) -> None:
        """Switch rate limits, or scale all limits."""
        if enabled is not None:
            self.slack.rates.enabled = enabled
        if scale is not None:
            self.slack.rates.scale = scale

    def fault(
        self,
        fault: str,
        method: str = "*",
        calls: int = 1,
        seconds: float = 1.0,
        after: int = 0,
        error: str = "access_denied",
    ) -> None:
        """Plan a fault for coming calls; see `Faults.plan`."""
        self.slack.faults.plan(
            fault, method, calls=calls, seconds=seconds, after=after, error=error
        )

    def delivery_fault(
        self,
        fault: str,
        deliveries: int = 1,
        retry_num: int = 1,
        retry_reason: str = "http_timeout",
    ) -> None:
        """Plan a fault for coming deliveries; see `Faults.plan_delivery`."""
        self.slack.faults.plan_delivery(
            fault,
            deliveries=deliveries,
            retry_num=retry_num,
            retry_reason=retry_reason,
        )

    def clear_faults(self) -> None:
        """Remove every planned fault."""
        self.slack.faults.clear()

    def calls(self) -> list[JsonObject]:
        """Return the log of Web API calls."""
        return [asdict(call) for call in self.slack.calls]

    def problems(self) -> list[str]:
        """Return the app's errors that Slack could detect."""
        return list(self.slack.problems)

    # Delivery

    def deliver_http(self, url: str) -> None:
        """Deliver by signed HTTP to this request URL from now on."""
        self.http.url = url
        self.delivery.transport = self.http
        self.slack.workspace.changed(self.slack.workspace.users)

    async def disconnect(
        self, count: int | None = None, reason: str = "refresh_requested"
    ) -> None:
        """Ask `count` sockets, or all, to reconnect, or announce why they end."""
        await self.sockets.ask_to_reconnect(count, reason)

    def refuse_sockets(self, *, enabled: bool) -> None:
        """Refuse new sockets, as if Slack's socket servers were down."""
        self.sockets.are_refused = enabled

    def drop(self, count: int | None = None) -> None:
        """Cut `count` sockets, or all, abruptly."""
        self.sockets.drop(count)

    async def verify_url(self) -> bool:
        """Send `url_verification`; return True if the challenge came back."""
        return await self.http.verify_url()

    async def check_ssl(self) -> bool:
        """Send the unsigned `ssl_check`; return True if the answer was 200."""
        return isinstance(await self.http.check_ssl(), Ack)

    async def resend(self, forgery: str = Forgery.NONE) -> JsonObject:
        """Send the newest request again, forged or not; return status and body."""
        received: Received = await self.http.resend(forgery)
        return asdict(received)

    # The workspace

    def set_group(self, group: str, users: Sequence[str]) -> None:
        """Replace the people of a user group."""
        self.slack.workspace.set_group(group, users)

    def disable_group(self, group: str) -> None:
        """Disable a user group."""
        workspace = self.slack.workspace
        workspace.put_group(replace(workspace.groups[group], is_disabled=True))

    def deactivate(self, user: str) -> None:
        """Deactivate a person."""
        self.slack.workspace.set_deleted(user, deleted=True)

    def reactivate(self, user: str) -> None:
        """Reactivate a deactivated person."""
        self.slack.workspace.set_deleted(user, deleted=False)

    def join(self, channel: str, user: str) -> None:
        """Add a person or the bot to a channel."""
        self.slack.workspace.join(channel, user)

    def leave(self, channel: str, user: str) -> None:
        """Remove a person or the bot from a channel."""
        self.slack.workspace.leave(channel, user)

    def archive(self, channel: str) -> None:
        """Archive a channel."""
        self.slack.workspace.set_archived(channel, archived=True)

    def unarchive(self, channel: str) -> None:
        """Unarchive a channel."""
        self.slack.workspace.set_archived(channel, archived=False)

    def share(self, channel: str, new_id: str) -> None:
        """Give a private channel another id, as Slack does for a newly shared one.

        The old id no longer works.
        """
        self.slack.workspace.set_channel_id(channel, new_id)

    def host(self, channel: str, team: str) -> None:
        """Mark a channel as shared with this workspace by another one."""
        workspace = self.slack.workspace
        workspace.put_channel(replace(workspace.channel(channel), host=team))

    def scopes(self, scopes: Sequence[str]) -> None:
        """Replace the bot's granted scopes."""
        self.slack.workspace.bot_scopes = tuple(scopes)

    def enable_home(self, *, enabled: bool) -> None:
        """Switch the app's Home tab."""
        self.slack.workspace.home_enabled = enabled

    def edit_window(self, seconds: float | None) -> None:
        """Limit the time for editing messages; None removes the limit."""
        self.slack.workspace.edit_window_s = seconds

    def rotate_tokens(self, *, enabled: bool, life_s: int = TOKEN_LIFE_S) -> None:
        """Give later installations tokens that expire and rotate."""
        self.slack.installer.rotation = enabled
        self.slack.installer.token_life_s = life_s

    async def revoke_bot_token(self) -> None:
        """Revoke the bot's tokens, and send `tokens_revoked`."""
        workspace = self.slack.workspace
        is_org = workspace.is_enterprise_install
        place = workspace.enterprise_id if is_org else workspace.team_id
        self.slack.installer.uninstall(place)
        bot = self.slack.workspace.app.bot_user
        await self.announce("tokens_revoked", tokens={"oauth": [], "bot": [bot]})

    async def uninstall_app(self) -> None:
        """Remove the app from the workspace, and send the resulting events."""
        await self.revoke_bot_token()
        await self.announce("app_uninstalled")

    def restore_bot_token(self) -> None:
        """Accept the bot's token again."""
        self.slack.tokens.add(self.slack.bot_token, TokenKind.BOT)

    async def announce(self, kind: str, **members: object) -> None:
        """Send an event that concerns the app, if the app subscribed to it."""
        if kind in self.slack.workspace.events:
            event = payloads.event(self.slack, {"type": kind, **members})
            await self.delivery.deliver(event)


COMMANDS = frozenset(
    name
    for name, _ in inspect.getmembers(Control, inspect.isfunction)
    if not name.startswith("_") and name != "run"
)
