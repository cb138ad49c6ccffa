"""Exceptions of Keyturn: one class for each way a caller can react."""

from __future__ import annotations

import errno


class KeyturnError(Exception):
    """The base of every error that Keyturn raises on purpose.

    Its text is one calm sentence: the event, the value, the next step. The text is safe
    to print for an operator: it never contains a secret or a tool's arguments.
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Return the parts to rebuild this error in another process of a worker pool.

        By default Python calls the class with the text. If that fails, the pool hangs.
        """
        return _remade, (self.plain_class(), self.args, vars(self))

    def plain_class(self) -> type[KeyturnError]:
        """Return the class that replaces this one in another process."""
        return type(self)


def _remade(
    kind: type[KeyturnError], args: tuple[object, ...], facts: dict[str, object]
) -> KeyturnError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class BadJson(KeyturnError):
    """A document is not strict JSON.

    Attributes:
        pointer: JSON Pointer (RFC 6901) of the invalid place, "" for the whole.
        problem: the problem, without the value itself.
    """

    def __init__(self, problem: str, pointer: str = "") -> None:
        self.pointer = pointer
        self.problem = problem
        place = f" at {pointer!r}" if pointer else ""
        super().__init__(f"This JSON cannot be accepted{place}: {problem}.")


class InexactNumber(BadJson):
    """A document has a number that some readers of JSON round."""


class SettingsError(KeyturnError):
    """A setting is missing or wrong; nothing was started."""


class PolicyError(KeyturnError):
    """A policy cannot be loaded or evaluated; nothing runs under it.

    Attributes:
        location: ``file:line`` if known, else the file's name.
    """

    def __init__(self, problem: str, location: str = "") -> None:
        self.location = location
        super().__init__(f"{location}: {problem}" if location else problem)


class StoreUnavailable(KeyturnError):
    """The store did not answer, or did not confirm that it kept the write."""


class AuditUnreadable(StoreUnavailable):
    """A file of the audit log is missing or was changed."""


class BotKeyUnknown(StoreUnavailable):
    """A decision is signed with a key that this process does not have yet."""


class CorruptRecord(KeyturnError):
    """A stored record cannot be parsed, or its parts do not belong together.

    Attributes:
        approval: its id.
    """

    def __init__(self, approval: str, words: str = "") -> None:
        self.approval = approval
        super().__init__(
            words
            or f"The record of {approval!r} is corrupt, so its calls do not run. "
            "Find out what else writes to the store; the agent can ask again."
        )


class ForgedRecord(CorruptRecord):
    """A stored record differs from the last one written with the secret.

    Attributes:
        why: in words.
        is_replayed: it is an older version of the record.
    """

    def __init__(self, approval: str, why: str, *, is_replayed: bool = False) -> None:
        self.why, self.is_replayed = why, is_replayed
        older = (
            f"The record of {approval!r} is older than what is known of it, so nothing "
            "of it was decided or run. Either an older copy of the store was put back, "
            "or an agent proposed again what had ended long ago: make the call again "
            "as a new one, in a new message."
        )
        super().__init__(approval, older if is_replayed else "")


class NotConfirmed(StoreUnavailable):
    """The store kept a write without a replica's confirmation: it may be lost."""

    def __init__(self) -> None:
        super().__init__(
            "The store has kept this, but no replica has confirmed it yet, so a "
            "failover could lose it. Nothing was acknowledged; try again, and see "
            "that the replicas run."
        )


class Unanswered(StoreUnavailable):
    """A write got no answer, and may have been kept.

    The write went to the store, or to the gateway for a program that uses it over HTTP.
    """

    def __init__(self, why: str, hint: str, *, who: str = "The store") -> None:
        super().__init__(
            f"{who} does not answer ({why}), and it is not known whether it kept "
            f"this; {hint}"
        )


class KeptInPart(Unanswered):
    """The store stopped a script in the middle; its earlier writes remain."""

    def __init__(self, why: str) -> None:
        StoreUnavailable.__init__(
            self,
            f"The store stopped in the middle of this ({why}), so a part of it may be "
            "kept; see that its user may run everything (keyturn doctor), and who else "
            "writes to it.",
        )


class AlreadySpent(KeyturnError):
    """An attempt to run a call is spent, so nothing more was written.

    Attributes:
        approval, item: of the call, or of the standing approval that covered it.
        number: the newest spent attempt.
        at_ms: its time, by the store's clock.
        owner: the attempt that claimed it; "" if it ended unused.
    """

    def __init__(
        self, approval: str, item: int, number: int, at_ms: int, owner: str = ""
    ) -> None:
        self.approval, self.item = approval, item
        self.number, self.at_ms, self.owner = number, at_ms, owner
        super().__init__(
            f"Attempt {number} of call {item} of {approval!r} was begun or has ended "
            "already, so it was not started again."
        )


class NotVerified(KeyturnError):
    """A signed text does not prove its claim; do not use any of it.

    Attributes:
        reason: one word for programs and for the log of security events.
        problem: the same in words, without any part of the signed text.
    """

    def __init__(self, reason: str, problem: str) -> None:
        self.reason = reason
        self.problem = problem
        super().__init__(f"This signed text was refused ({reason}): {problem}.")


class UnsafeStore(KeyturnError):
    """The store would lose acknowledged decisions, so Keyturn does not use it.

    Attributes:
        can_pass: True if the problem may end without action, as during a failover.
    """

    def __init__(self, problem: str, *, can_pass: bool = False) -> None:
        self.can_pass = can_pass
        super().__init__(problem)


class IllegalTransition(KeyturnError):
    """The lifecycle table does not allow this transition of a state."""

    def __init__(self, state: str, transition: str) -> None:
        super().__init__(f"An item that is {state!r} cannot {transition!r}.")


class NotAllowed(KeyturnError):
    """The gateway refuses this: the tool must not run."""


class RefReused(NotAllowed):
    """A turn was submitted under another turn's name, with other calls."""

    def __init__(self, message_id: str, call: str) -> None:
        super().__init__(
            f"The message {message_id!r} was submitted before, and call {call!r} with "
            "these arguments was not in it. The call was not evaluated and does not "
            "run; submit each message of the model under its own message_id."
        )


class KeyRefused(NotAllowed):
    """A gateway in another process refuses the API key of this one.

    The refusal does not concern a call: with another key the same call may run.
    """


class NotStarted(NotAllowed):
    """A tool's guard refused it before it began, so it had no effect."""


class UngatedTool(NotAllowed):
    """A tool was started below a gated agent without a cleared call; it did not run."""

    def __init__(self, agent: str, tool: str) -> None:
        super().__init__(
            f"The tool {tool!r} did not run: it was started inside the agent "
            f"{agent!r} where no approval gate cleared it. Do not try it again that "
            "way; the agent's developer can give the agent that calls it "
            "`ApprovalMiddleware`, or name the tool under `ungated`."
        )


class TooManySpeakers(NotAllowed):
    """More people spoke in a thread than can be remembered; none is forgotten."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"More than {limit} people have spoken in this thread. None of them may "
            "decide what comes of it, so none is forgotten: start a new thread."
        )


class GraphError(KeyturnError):
    """An agent's graph cannot be imported or is not a compiled graph."""


class BadStep(KeyturnError):
    """A graph's step cannot run as written; no approval was requested."""


class StateUnknown(KeyturnError):
    """The business state that a call depends on cannot be read, so it did not run."""


class ClockWrong(KeyturnError):
    """A call did not run, because this machine's clock differs from the gateway's."""


class ThreadUnavailable(KeyturnError):
    """A thread cannot be resumed now; its job remains for another attempt."""


class ThreadUnknown(ThreadUnavailable):
    """The checkpoints of this process lack a thread with approved calls."""

    def __init__(self, agent: str, thread: str) -> None:
        super().__init__(
            f"The checkpoints of this process do not know the thread {thread!r} of "
            f"{agent!r}, in which approved calls wait to run; another gateway may. "
            "Give all gateways of one store the same 'checkpoints'."
        )


class LeaseLost(ThreadUnavailable):
    """The right to run a thread has ended, so nothing more was written for it."""

    def __init__(self) -> None:
        super().__init__(
            "This process was paused or cut off for longer than its lease on the "
            "thread lives, so it wrote nothing more. The process that holds the lease "
            "now continues from the saved state; you don't need to do anything."
        )


FINAL_ERRORS = (NotAllowed, CorruptRecord, IllegalTransition)
"""Final answers of the gateway: a retry gets the same error."""


_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def remedy(error: BaseException) -> str:
    """Return a sentence about a full disk or a file without access; "" for others."""
    if not isinstance(error, OSError):
        return ""
    if error.errno in _FULL:
        where = f"of {error.filename!r}" if error.filename else "in use"
        return (
            f"The disk {where} is full ({error.strerror}). Make room on it, then run "
            "the command again."
        )
    if error.errno in _REFUSED and error.filename:
        return (
            f"{str(error.filename)!r} cannot be used ({error.strerror}). Run the "
            "command as the user of Keyturn, or give this user access."
        )
    return ""
