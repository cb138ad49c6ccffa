"""Save the workspace to a JSON file, and load it at the next start."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.records import Channel, Message, User, UserGroup, View

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Snapshot:
    """The saved state: the workspace's contents and the app's credentials.

    It excludes triggers, response URLs and notices, which are short-lived in Slack too.
    """

    bot_token: str
    app_token: str
    signing_secret: str
    seq: int
    users: list[User]
    channels: list[Channel]
    groups: list[UserGroup]
    messages: list[Message]
    modals: list[View] = field(default_factory=list[View])
    homes: list[View] = field(default_factory=list[View])


_SNAPSHOT = TypeAdapter(Snapshot)


def save(path: Path, slack: FakeSlack) -> None:
    """Write the state to `path` atomically."""
    workspace = slack.workspace
    lasting = [m for channel in workspace.messages.values() for m in channel.values()]
    saved = Snapshot(
        bot_token=slack.bot_token,
        app_token=slack.app_token,
        signing_secret=slack.signing_secret,
        seq=workspace.seq,
        users=list(workspace.users.values()),
        channels=list(workspace.channels.values()),
        groups=list(workspace.groups.values()),
        messages=[*lasting, *workspace.ephemerals.values()],
        modals=[view for stack in workspace.modals.values() for view in stack],
        homes=list(workspace.homes.values()),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.draft")
    # Before writing: the file contains tokens and the signing secret.
    temporary.touch(mode=0o600)
    temporary.write_bytes(_SNAPSHOT.dump_json(saved))
    # Renamed over the old file, so that a kill leaves either the old or the new one.
    temporary.replace(path)


def load(path: Path) -> Snapshot | None:
    """Return the saved state, or None if there is no such file.

    Raises:
        ValueError: the file is not a saved sandbox.
    """
    if not path.exists():
        return None
    try:
        return _SNAPSHOT.validate_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} is not a saved sandbox; move it away to start afresh."
        ) from error


def restore(saved: Snapshot | None, slack: FakeSlack) -> None:
    """Replace the state of a new fake Slack by the saved one; None changes nothing."""
    if saved is None:
        return
    slack.use_credentials(saved.bot_token, saved.app_token, saved.signing_secret)
    workspace = slack.workspace
    workspace.seq = saved.seq
    workspace.users = {user.id: user for user in saved.users}
    workspace.channels = {channel.id: channel for channel in saved.channels}
    workspace.groups = {group.id: group for group in saved.groups}
    for message in saved.messages:
        # A ts identifies a message, so new ones must exceed all saved ones.
        slack.clock.not_before(message.ts)
        if message.ephemeral_to is None:
            workspace.messages[message.channel][message.ts] = message
        else:
            workspace.ephemerals[message.ts] = message
    for view in saved.modals:
        workspace.modals[view.user].append(view)
    workspace.homes = {view.user: view for view in saved.homes}


class AutoSaver:
    """Save the workspace at each change, before the watchers are notified.

    An accepted message is therefore durable even if the sandbox is killed right after.
    On a full disk, the workspace continues in memory, and the log says so.
    """

    def __init__(self, path: Path, slack: FakeSlack) -> None:
        self._path = path
        self._slack = slack
        slack.workspace.watchers.insert(0, self._save)

    def close(self) -> None:
        """Save once more, and stop watching."""
        self._slack.workspace.watchers.remove(self._save)
        self._save(frozenset())

    def _save(self, seen_by: frozenset[str]) -> None:
        del seen_by
        try:
            save(self._path, self._slack)
        except OSError as error:
            why = error.strerror
            logger.warning("sandbox.not_saved file=%s why=%s", self._path, why)
