"""Immutable wire records: person, run, edit, result."""

from __future__ import annotations

import re
from typing import Self

from pydantic import BaseModel, ConfigDict

from twokey.gateway.protocol.strict_json import JsonObject

_set = object.__setattr__
_SLACK_USER = re.compile(r"[UW][A-Z0-9]+", re.ASCII)

NO_SLACK_ID = (
    "This is no id of a Slack user; give one, such as U0123ABCD. Without it, whoever "
    "asked could approve their own call."
)
"""What is wrong with a person that a program names otherwise."""


class Record(BaseModel):
    """An immutable record that refuses fields it does not know.

    What does not fit is named without what it holds: that may be an argument.
    """

    # `forbid`: a field that an older version does not know may change what a record
    # means. `hide_input_in_errors`: an error's text ends in logs.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def with_(self, **changes: object) -> Self:
        """Return a copy with these fields replaced; values are trusted, not parsed.

        What comes from outside is parsed by ``model_validate`` and never put in here.
        """
        # What `model_copy` does, in half the time: it copies each dictionary twice, and
        # one decision makes twenty copies.
        copied = object.__new__(type(self))
        # A frozen record refuses any other way.
        _set(copied, "__dict__", self.__dict__ | changes)
        fields = self.__pydantic_fields_set__
        _set(copied, "__pydantic_fields_set__", fields | changes.keys())
        _set(copied, "__pydantic_extra__", self.__pydantic_extra__)
        _set(copied, "__pydantic_private__", self.__pydantic_private__)
        return copied


class Person(Record):
    """A Slack person. Only ``user`` identifies; ``name`` is for reading."""

    team: str
    user: str
    name: str = ""

    def is_same(self, other: Person) -> bool:
        """Return whether both are one person, by their Slack ids and never by name.

        Also where the teams differ: a bot knows everybody by its own workspace, and a
        program may name the organization's id, or a wrong one. By the team, whoever
        asked could then approve, and one person could be two of two.
        """
        return self.user == other.user

    @property
    def has_slack_id(self) -> bool:
        """Return whether ``user`` may be an id that Slack gives a user."""
        return _SLACK_USER.fullmatch(self.user) is not None


class RunRef(Record):
    """The run that calls belong to: the outermost agent, and its thread.

    People speak to it, a worker brings it forward, and what waits inside it ends with
    it. An agent that runs in no tool of another one is a run of its own.
    """

    agent: str
    thread: str


class EditRecord(Record):
    """What a person changed in a call; the agent is told exactly this.

    ``requested`` and ``executed`` are arguments, ``patch`` is RFC 6902 from the first
    to the second, the two hashes are those of the two action documents.
    """

    v: int = 1
    item_id: str
    tool: str
    tool_call_id: str
    requested: JsonObject
    executed: JsonObject
    patch: tuple[JsonObject, ...]
    requested_hash: str
    executed_hash: str
    by: Person
    at_ms: int
    reason: str = ""


class Result(Record):
    """What the executor reported.

    ``payload`` is the tool's answer in the executor's own encoding; the gateway keeps
    it to hand it back and never reads it. ``summary`` is untrusted text for the card.
    """

    ok: bool
    summary: str = ""
    payload: str = ""


def is_inside(ns: str, outer: str) -> bool:
    """Return whether one agent's namespace lies inside that of another.

    LangGraph names what runs inside a task ``|node:task``. The second and the third
    graph that one task runs are ``|1`` and ``|2``: they run beside the first.
    """
    inner = ns.removeprefix(f"{outer}|") if outer else ns
    is_longer = inner != ns or not outer
    # Graphs that one task runs side by side are not inside each other.
    return is_longer and ns != outer and not inner.partition("|")[0].isdecimal()
