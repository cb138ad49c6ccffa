"""Read verified Slack payloads into typed records, strictly and completely.

What comes in was signed by Slack, so it is well meant; it may still be of a kind, or
from a kind of installation, that nobody thought of. Every reader here either returns
a record or raises `BadPayload` with the place that is missing; none ever raises
anything else.

Three ids say where a person comes from. ``team`` is the workspace in which they acted,
``enterprise`` the organization above it ("" for none), ``user_team`` the home of their
account: with Slack Connect it is another company's. An app that is installed on a
whole organization gets ``team: null`` in some payloads; then the view's
``app_installed_team_id`` or the user's own team stands in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from twokey.gateway.errors import TwokeyError

Json = Mapping[str, object]


class BadPayload(TwokeyError):
    """A payload from Slack has not the shape it should have.

    Attributes:
        place: dotted path of what is missing or wrong, such as ``actions.0.value``.
    """

    def __init__(self, place: str, problem: str = "is missing or not a text") -> None:
        self.place = place
        super().__init__(
            f"Slack sent a payload in which {place!r} {problem}; nothing was done."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAction:
    """A click on a button, or a choice in a menu.

    ``channel`` and ``message_ts`` are those of the card, "" inside a modal or the Home
    tab; ``view_id`` and ``view_hash`` the other way round. ``chosen`` holds what a
    menu, date or checkbox picked.
    """

    team: str
    enterprise: str = ""
    user: str
    user_team: str
    channel: str = ""
    message_ts: str = ""
    is_ephemeral: bool = False
    action_id: str
    block_id: str
    value: str = ""
    chosen: tuple[str, ...] = ()
    action_ts: str
    trigger_id: str
    response_url: str = ""
    view_id: str = ""
    view_hash: str = ""
    private_metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSubmission:
    """A submitted modal; ``values`` is block id, action id, the input's state."""

    team: str
    enterprise: str = ""
    user: str
    user_team: str
    callback_id: str
    view_id: str
    root_view_id: str
    view_hash: str = ""
    private_metadata: str
    values: Mapping[str, Mapping[str, Json]]
    trigger_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A slash command; Slack says no home team, so ``user_team`` is ``team``."""

    team: str
    enterprise: str = ""
    user: str
    user_team: str
    channel: str
    command: str
    text: str
    trigger_id: str
    response_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeOpened:
    """A person opened the app's Home tab."""

    team: str
    enterprise: str = ""
    user: str
    tab: str
    view_hash: str = ""
    event_id: str


def block_action(payload: Json) -> BlockAction:
    """Read a ``block_actions`` payload with exactly one action.

    Raises:
        BadPayload: names what is missing.
    """
    root = root_of(payload, "block_actions")
    actions = root.nodes("actions")
    if len(actions) != 1:
        raise BadPayload("actions", f"holds {len(actions)} actions instead of one")
    action = actions[0]
    container, view = root.maybe("container"), root.maybe("view")
    return BlockAction(
        team=_team(root),
        enterprise=_enterprise(root),
        user=root.child("user").text("id"),
        user_team=_user_team(root),
        channel=root.maybe("channel").optional("id")
        or container.optional("channel_id"),
        message_ts=container.optional("message_ts"),
        is_ephemeral=container.flag("is_ephemeral"),
        action_id=action.text("action_id"),
        block_id=action.text("block_id"),
        value=action.optional("value"),
        chosen=_chosen(action),
        action_ts=action.text("action_ts"),
        trigger_id=root.text("trigger_id"),
        response_url=root.optional("response_url"),
        view_id=view.optional("id"),
        view_hash=view.optional("hash"),
        private_metadata=view.optional("private_metadata"),
    )


def view_submission(payload: Json) -> ViewSubmission:
    """Read a ``view_submission`` payload.

    Raises:
        BadPayload: names what is missing.
    """
    root = root_of(payload, "view_submission")
    view = root.child("view")
    view_id = view.text("id")
    return ViewSubmission(
        team=_team(root),
        enterprise=_enterprise(root),
        user=root.child("user").text("id"),
        user_team=_user_team(root),
        callback_id=view.text("callback_id"),
        view_id=view_id,
        root_view_id=view.optional("root_view_id") or view_id,
        view_hash=view.optional("hash"),
        private_metadata=view.optional("private_metadata"),
        values=_values(view.child("state").child("values")),
        trigger_id=root.optional("trigger_id"),
    )


def command(form: Json) -> Command:
    """Read the form of a slash command.

    Raises:
        BadPayload: names what is missing.
    """
    root = Node(form)
    team = root.text("team_id")
    return Command(
        team=team,
        enterprise=root.optional("enterprise_id"),
        user=root.text("user_id"),
        user_team=team,
        channel=root.text("channel_id"),
        command=root.text("command"),
        text=root.optional("text"),
        trigger_id=root.text("trigger_id"),
        response_url=root.text("response_url"),
    )


def home_opened(body: Json) -> HomeOpened:
    """Read an ``app_home_opened`` event.

    Raises:
        BadPayload: names what is missing.
    """
    root = root_of(body, "event_callback")
    event = root.child("event")
    kind = event.text("type")
    if kind != "app_home_opened":
        raise BadPayload("event.type", f"is {kind!r}, not 'app_home_opened'")
    return HomeOpened(
        team=root.text("team_id"),
        enterprise=root.optional("enterprise_id"),
        user=event.text("user"),
        tab=event.optional("tab") or "home",
        view_hash=event.maybe("view").optional("hash"),
        event_id=root.text("event_id"),
    )


class Node:
    """One object of a payload, and where it stands."""

    def __init__(self, value: object, place: str = "") -> None:
        if not isinstance(value, Mapping):
            raise BadPayload(place or "payload", "is missing or not an object")
        self._members = cast("Mapping[object, object]", value)
        self._place = place

    def text(self, key: str) -> str:
        """Return a text that has to be there and not be empty."""
        value = self._members.get(key)
        if not isinstance(value, str) or not value:
            raise BadPayload(self.at(key))
        return value

    def optional(self, key: str) -> str:
        """Return a text, "" when it is absent or null."""
        value = self._members.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise BadPayload(self.at(key), "is not a text")
        return value

    def has(self, key: str) -> bool:
        """Say whether there is a value that is not null."""
        return self._members.get(key) is not None

    def flag(self, key: str) -> bool:
        """Say whether the value is true."""
        return self._members.get(key) is True

    def child(self, key: str) -> Node:
        """Return an object that has to be there."""
        return Node(self._members.get(key), self.at(key))

    def maybe(self, key: str) -> Node:
        """Return an object, an empty one when it is absent or null."""
        value = self._members.get(key)
        return Node({} if value is None else value, self.at(key))

    def nodes(self, key: str) -> list[Node]:
        """Return the objects of an array that has to be there."""
        value = self._members.get(key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise BadPayload(self.at(key), "is missing or not an array")
        elements = cast("Sequence[object]", value)
        place = self.at(key)
        return [Node(node, f"{place}.{i}") for i, node in enumerate(elements)]

    def children(self) -> list[tuple[str, Node]]:
        """Return every member, each of which has to be an object."""
        return [
            (str(key), Node(node, self.at(str(key))))
            for key, node in self._members.items()
        ]

    def as_json(self) -> Json:
        """Return the object itself."""
        return {str(key): value for key, value in self._members.items()}

    def at(self, key: str) -> str:
        """Return the dotted path of a member."""
        return f"{self._place}.{key}" if self._place else key


def root_of(payload: Json, kind: str) -> Node:
    """Return a payload of this ``type``; raises `BadPayload` for any other."""
    root = Node(payload)
    found = root.text("type")
    if found != kind:
        raise BadPayload("type", f"is {found!r}, not {kind!r}")
    return root


def _team(root: Node) -> str:
    here = root.maybe("team").optional("id")
    installed = root.maybe("view").optional("app_installed_team_id")
    team = here or installed or root.child("user").optional("team_id")
    if not team:
        raise BadPayload("team.id")
    return team


def _user_team(root: Node) -> str:
    return root.child("user").optional("team_id") or _team(root)


def _enterprise(root: Node) -> str:
    return root.maybe("enterprise").optional("id")


def _values(node: Node) -> Mapping[str, Mapping[str, Json]]:
    return {
        block: {action: state.as_json() for action, state in inputs.children()}
        for block, inputs in node.children()
    }


def _chosen(action: Node) -> tuple[str, ...]:
    if action.has("selected_options"):
        return tuple(each.text("value") for each in action.nodes("selected_options"))
    if action.has("selected_option"):
        return (action.child("selected_option").text("value"),)
    picked = ("selected_date", "selected_time", "selected_user")
    return tuple(action.optional(key) for key in picked if action.optional(key))
