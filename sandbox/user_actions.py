"""Simulate a person's actions in Slack: clicks, commands, submissions, messages."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from keyturn.sandbox import inputs, payloads, responses, view_responses, views
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.delivery import Ack, Answer, Delivery, NoAck
from keyturn.sandbox.elements import VALUE_FIELDS, PlacedElement, find, offers
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject, as_object, as_text
from keyturn.sandbox.mentions import escaped
from keyturn.sandbox.payloads import Interaction
from keyturn.sandbox.records import Message, User, View
from keyturn.sandbox.response_urls import ResponseUrl
from keyturn.sandbox.user_messages import UserMessages, channel_of

OK: JsonObject = {"ok": True}


class UserActions:
    """A person's actions in Slack, one method for each kind of request."""

    def __init__(self, slack: FakeSlack, delivery: Delivery) -> None:
        self._slack = slack
        self._delivery = delivery
        user_messages = UserMessages(slack, delivery)
        self._kinds: dict[str, Callable[[User, JsonObject], Awaitable[JsonObject]]] = {
            "block_actions": self._act,
            "view_submission": self._submit,
            "view_closed": self._close,
            "message": user_messages.say,
            "message_edited": user_messages.edit,
            "message_deleted": user_messages.delete,
            "command": self._command,
            "home_opened": self._open_home,
        }

    async def act(self, request: JsonObject) -> JsonObject:
        """Perform the action of a `POST /sandbox/act` request.

        Raises:
            ApiError: the action is impossible in Slack; nothing was delivered.
        """
        kind = self._kinds.get(as_text(request.get("type")))
        if kind is None:
            raise ApiError("unknown_type", known=sorted(self._kinds))
        user = self._slack.workspace.user(request.get("user"))
        if user.deleted or user.is_bot:
            raise ApiError("account_inactive")
        return await kind(user, request)

    async def _act(self, user: User, request: JsonObject) -> JsonObject:
        if request.get("view_id"):
            return await self._act_in_view(user, request)
        message = self._message(user, request)
        blocks, placed = self._pressed(message, request)
        key = (user.id, message.channel, message.ts)
        remembered = self._slack.workspace.message_values
        values = inputs.merged(blocks, remembered.get(key, {}), request.get("values"))
        action = self._action(placed, as_object(request.get("chosen")), values)
        # With each click Slack sends all of this person's earlier choices in the
        # message.
        remembered[key] = values
        if not _dispatches(placed):
            return OK
        interaction = Interaction(user, self._slack.triggers.issue(user.id))
        envelope = payloads.on_message(
            self._slack, interaction, message, action, values
        )
        return self._plain(user, await self._delivery.deliver(envelope))

    async def _act_in_view(self, user: User, request: JsonObject) -> JsonObject:
        view = self._view(user, request)
        blocks, placed = _pressed(self._slack.workspace.shown_in(view), request)
        values = inputs.merged(blocks, view.values, request.get("values"))
        action = self._action(placed, as_object(request.get("chosen")), values)
        is_shown_now = blocks == view.blocks
        view = replace(view, values=values)
        # Input in a view that has since been replaced is sent, but not kept.
        if is_shown_now:
            views.store(self._slack, view)
        if not _dispatches(placed):
            return OK
        from_modal = view.document["type"] == "modal"
        trigger_id = self._slack.triggers.issue(user.id, from_modal=from_modal)
        envelope = payloads.on_view(
            self._slack, Interaction(user, trigger_id), view, action
        )
        return self._plain(user, await self._delivery.deliver(envelope))

    async def _submit(self, user: User, request: JsonObject) -> JsonObject:
        view = self._view(user, request)
        if not view.document.get("submit"):
            raise ApiError("view_has_no_submit")
        values = inputs.merged(view.blocks, view.values, request.get("values"))
        errors = inputs.errors_in(view.blocks, values)
        view = replace(view, values=values, errors=errors)
        views.store(self._slack, view)
        # Slack's client rejects it: the app does not receive such a submission.
        if errors:
            return {"ok": True, "errors": errors}
        trigger_id = self._slack.triggers.issue(user.id, from_modal=True)
        interaction = Interaction(user, trigger_id)
        envelope = payloads.view_submission(self._slack, interaction, view)
        answer = await self._delivery.deliver(envelope)
        if isinstance(answer, NoAck):
            return self._plain(user, answer)
        return view_responses.apply(self._slack, view, answer.body)

    async def _close(self, user: User, request: JsonObject) -> JsonObject:
        view = self._view(user, request)
        cleared = bool(request.get("clear") or view.document.get("clear_on_close"))
        closed = [view]
        if cleared:
            closed = views.close_all(self._slack, user.id)[::-1]
        else:
            views.close(self._slack, view)
        for gone in closed:
            if gone.document.get("notify_on_close"):
                envelope = payloads.view_closed(
                    self._slack, Interaction(user), gone, is_cleared=cleared
                )
                await self._delivery.deliver(envelope)
        return OK

    async def _command(self, user: User, request: JsonObject) -> JsonObject:
        workspace = self._slack.workspace
        channel = channel_of(workspace, user, request)
        command = as_text(request.get("command"))
        # Without the scope Slack does not recognize the app's commands, regardless of
        # the manifest.
        installed = "commands" in workspace.bot_scopes
        if not installed or command not in workspace.commands:
            self._slack.notify(user.id, f"{command} is not a valid command.")
            return {"ok": False, "error": "unknown_command"}
        text = escaped(workspace, as_text(request.get("text")), labels=True)
        interaction = Interaction(user, self._slack.triggers.issue(user.id))
        envelope = payloads.slash_command(
            self._slack, interaction, channel, command, text
        )
        answer = await self._delivery.deliver(envelope)
        if isinstance(answer, NoAck):
            return self._plain(user, answer, f"{command} failed: ")
        body = responses.command_answer(answer.body)
        if body is not None:
            place = ResponseUrl("", channel.id, user.id, self._slack.clock.now())
            try:
                responses.respond(self._slack, place, body)
            except ApiError as refused:
                self._slack.add_problem(
                    f"bad answer to {command}: {refused.answer()!r}"
                )
                self._slack.notify(
                    user.id, f"{command} failed: {refused.error}", "error"
                )
                return refused.answer()
        return OK

    async def _open_home(self, user: User, request: JsonObject) -> JsonObject:
        del request
        workspace = self._slack.workspace
        if "app_home_opened" not in workspace.events or not workspace.home_enabled:
            return OK
        body: JsonObject = {
            "type": "app_home_opened",
            "user": user.id,
            "channel": workspace.direct_message(user.id).id,
            "tab": "home",
            "event_ts": self._slack.clock.next_ts(),
        }
        home = workspace.homes.get(user.id)
        if home is not None:
            body["view"] = views.wire(self._slack, home)
        await self._delivery.deliver(payloads.event(self._slack, body))
        return OK

    def _message(self, user: User, request: JsonObject) -> Message:
        channel = channel_of(self._slack.workspace, user, request, member=True)
        ts = as_text(request.get("ts"))
        return self._slack.workspace.message(channel.id, ts, user.id)

    def _pressed(
        self, message: Message, request: JsonObject
    ) -> tuple[list[JsonObject], PlacedElement]:
        return _pressed(self._slack.workspace.shown_blocks(message), request)

    def _view(self, user: User, request: JsonObject) -> View:
        workspace, view_id = self._slack.workspace, request.get("view_id")
        stack, home = workspace.modals[user.id], workspace.homes.get(user.id)
        # Only the top one: people cannot reach a modal below another.
        for view in (stack[-1] if stack else None, home):
            if view is not None and view.id == view_id:
                return view
        raise ApiError("view_not_found")

    def _action(
        self, placed: PlacedElement, chosen: JsonObject, values: JsonObject
    ) -> JsonObject:
        """Return the entry of `actions`, and store the choice in `values`."""
        element = placed.element
        action: JsonObject = {
            "type": placed.type,
            "action_id": placed.action_id,
            "block_id": placed.block_id,
            "action_ts": self._slack.clock.next_ts(),
        }
        if placed.type in VALUE_FIELDS:
            state = values[placed.block_id][placed.action_id]
            if chosen:
                state = inputs.read_state(placed, chosen)
                values[placed.block_id][placed.action_id] = state
            return {**action, **as_object(state)}
        if placed.type == "overflow":
            # Not among the values: an overflow menu keeps no choice.
            if not offers(element, chosen.get("selected_option")):
                raise ApiError("invalid_values")
            return action | {"selected_option": chosen["selected_option"]}
        for key in ("text", "value", "style"):
            if key in element:
                action[key] = element[key]
        return action

    def _plain(self, user: User, answer: Answer, prefix: str = "") -> JsonObject:
        if isinstance(answer, Ack):
            return OK
        name = self._slack.workspace.app.name
        match answer.reason:
            case "timeout":
                text = f"{name} did not respond in time."
            case "not_connected" | "connection_failed":
                text = f"{name} is not reachable."
            case reason:
                text = f"{name} answered with an error ({reason})."
        self._slack.notify(user.id, prefix + text)
        error = "app_did_not_respond"
        return {"ok": False, "error": error, "reason": answer.reason}


def _pressed(
    shown: Sequence[Sequence[JsonObject]], request: JsonObject
) -> tuple[list[JsonObject], PlacedElement]:
    """Return the pressed element with its blocks.

    A message or a Home tab may change between a click and its confirmation or its
    arrival. Slack then delivers the element as the person saw it.

    Args:
        shown: the current content and earlier ones, newest first.
        request: names the element, and its block if it may be an earlier one.
    """
    former = shown if request.get("block_id") is not None else shown[:1]
    for blocks in former:
        placed = _found(list(blocks), request)
        if placed is not None:
            return list(blocks), placed
    raise ApiError("action_not_found")


def _found(blocks: list[JsonObject], request: JsonObject) -> PlacedElement | None:
    block_id = request.get("block_id")
    return find(
        blocks,
        as_text(request.get("action_id")),
        None if block_id is None else str(block_id),
    )


def _dispatches(placed: PlacedElement) -> bool:
    if placed.block.get("type") != "input":
        return True
    return bool(placed.block.get("dispatch_action"))
