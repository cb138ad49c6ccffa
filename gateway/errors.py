"""Exceptions of Twokey: one class for each way a caller can react."""

from __future__ import annotations

from collections.abc import Sequence


class TwokeyError(Exception):
    """The base of every error that Twokey raises on purpose.

    Its text is one calm sentence: what happened, the value, the next step. It is
    safe to print to an operator; it never holds a secret or a tool's arguments.
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Return what makes the same error in another process of a worker pool.

        By default Python calls the class with the text, and a pool hangs where that
        fails.
        """
        return _remade, (self.plain_class(), self.args, vars(self))

    def plain_class(self) -> type[TwokeyError]:
        """Return the class by which another process knows this error."""
        return type(self)


def _remade(
    kind: type[TwokeyError], args: tuple[object, ...], facts: dict[str, object]
) -> TwokeyError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class BadJson(TwokeyError):
    """A document is not strict JSON.

    Attributes:
        pointer: JSON Pointer (RFC 6901) of the offending place, "" for the whole.
        problem: what is wrong with it, without the value itself.
    """

    def __init__(self, problem: str, pointer: str = "") -> None:
        self.pointer = pointer
        self.problem = problem
        place = f" at {pointer!r}" if pointer else ""
        super().__init__(f"This JSON cannot be accepted{place}: {problem}.")


class InexactNumber(BadJson):
    """A document has a number that some readers of JSON round."""


class SettingsError(TwokeyError):
    """A setting is missing or wrong; nothing was started."""


class PolicyError(TwokeyError):
    """A policy cannot be loaded or evaluated; nothing runs under it.

    Attributes:
        location: ``file:line`` when it is known, else the file's name.
    """

    def __init__(self, problem: str, location: str = "") -> None:
        self.location = location
        super().__init__(f"{location}: {problem}" if location else problem)


class StoreUnavailable(TwokeyError):
    """The store did not answer, or refused to promise that it kept the write."""


class AuditUnreadable(StoreUnavailable):
    """A part of the audit log that is in files is missing, or was changed."""


class BotKeyUnknown(StoreUnavailable):
    """A decision is signed with a key that this process has not been told of yet."""


class CorruptRecord(TwokeyError):
    """A stored record cannot be parsed, or its parts do not belong together.

    Attributes:
        approval: its id.
    """

    def __init__(self, approval: str, words: str = "") -> None:
        self.approval = approval
        super().__init__(
            words
            or f"The record of {approval!r} is corrupt, so nothing of it was "
            "decided or run. See who else writes to the store; the agent can ask again."
        )


class ForgedRecord(CorruptRecord):
    """A stored record is not as a process with the secret wrote it last.

    Attributes:
        why: in words.
        is_replayed: it was like this before.
    """

    def __init__(
        self,
        approval: str,
        why: str,
        *,
        is_replayed: bool = False,
        is_unsealed: bool = False,
    ) -> None:
        self.why, self.is_replayed = why, is_replayed
        unsealed = (
            f"The record of {approval!r} has no seal, so nothing of it was decided or "
            "run. A version of Twokey that sealed no records wrote it (see 'Upgrading' "
            "in docs/operations.md), or somebody else who writes to the store; the "
            "agent can ask again."
        )
        older = (
            f"The record of {approval!r} is older than what is known of it, so nothing "
            "of it was decided or run. Either an older copy of the store was put back, "
            "or an agent proposed again what had ended long ago: make the call again "
            "as a new one, in a new message."
        )
        super().__init__(
            approval, older if is_replayed else unsealed if is_unsealed else ""
        )


class NotConfirmed(StoreUnavailable):
    """The store kept a write, and no replica has confirmed it: it may yet be lost."""

    def __init__(self) -> None:
        super().__init__(
            "The store has kept this, but no replica has confirmed it yet, so a "
            "failover could lose it. Nothing was acknowledged; try again, and see "
            "that the replicas run."
        )


class Unanswered(StoreUnavailable):
    """Who was asked to keep something did not answer, and may have kept it.

    It is the store, or the gateway for a program that asks it over HTTP.
    """

    def __init__(self, why: str, hint: str, *, who: str = "The store") -> None:
        super().__init__(
            f"{who} does not answer ({why}), and it is not known whether it kept "
            f"this; {hint}"
        )


class KeptInPart(Unanswered):
    """The store ended a script of ours in its middle; what was written stays."""

    def __init__(self, why: str) -> None:
        StoreUnavailable.__init__(
            self,
            f"The store stopped in the middle of this ({why}), so a part of it may be "
            "kept; see that its user may run everything (twokey doctor), and who else "
            "writes to it.",
        )


class FreezeIncomplete(StoreUnavailable):
    """A freeze, or its end, is in some shards of a tenant that is split, not in all.

    Attributes:
        missing: the shards that did not answer.
    """

    def __init__(
        self, what: str, missing: Sequence[str], parts: int, *, is_set: bool
    ) -> None:
        self.missing = tuple(missing)
        done = "is frozen" if is_set else "is unfrozen"
        so_far = (
            "so calls of the agents there may still start"
            if is_set
            else "so calls of the agents there do not start yet"
        )
        super().__init__(
            f"{what} {done} in {parts - len(missing)} of {parts} shards, and "
            f"{', '.join(missing)} did not answer, {so_far}. The gateways go on trying "
            "until every shard has it; say it again to see whether it has."
        )


class NewerRecord(StoreUnavailable):
    """A newer version wrote this record: it is left as if it could not be had."""

    def __init__(self, record: str, *, format: int, known: int) -> None:  # noqa: A002 - as it is called everywhere
        super().__init__(
            f"The record of {record!r} was written by a newer version of Twokey "
            f"(format {format}; this version reads up to {known}), so it was left as "
            "it is. Run that version again: nothing of it is lost."
        )


class NotVerified(TwokeyError):
    """A signed text does not prove what it claims; nothing of it may be used.

    Attributes:
        reason: one word for programs and for the log of security events.
        problem: the same in words; holds nothing that was signed.
    """

    def __init__(self, reason: str, problem: str) -> None:
        self.reason = reason
        self.problem = problem
        super().__init__(f"This signed text was refused ({reason}): {problem}.")


class UnsafeStore(TwokeyError):
    """The store would lose acknowledged decisions, so Twokey will not use it.

    Attributes:
        can_pass: it may end by itself, because a failover is under way.
    """

    def __init__(self, problem: str, *, can_pass: bool = False) -> None:
        self.can_pass = can_pass
        super().__init__(problem)


class IllegalTransition(TwokeyError):
    """A state was asked to follow another that the lifecycle table does not allow."""

    def __init__(self, state: str, transition: str) -> None:
        super().__init__(f"An item that is {state!r} cannot {transition!r}.")


class NotAllowed(TwokeyError):
    """The gateway refuses this: the tool must not run."""


class KeyRefused(NotAllowed):
    """A gateway in another process refuses the API key of this one.

    It says nothing of a call: with another key the same call may run.
    """


class NotStarted(NotAllowed):
    """The guard of a tool refused it before it began, so it had no effect."""


class UngatedTool(NotAllowed):
    """A tool was started below a gated agent and no gate cleared it; it did not run."""

    def __init__(self, agent: str, tool: str) -> None:
        super().__init__(
            f"The tool {tool!r} did not run: it was started inside the agent "
            f"{agent!r} where no approval gate cleared it. Do not try it again that "
            "way; the agent's developer can give the agent that calls it "
            "`ApprovalMiddleware`, or name the tool under `ungated`."
        )


class TooManySpeakers(NotAllowed):
    """More people spoke in a thread than are remembered; none of them is forgotten."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"More than {limit} people have spoken in this thread. None of them may "
            "decide what comes of it, so none is forgotten: start a new thread."
        )


class GraphError(TwokeyError):
    """An agent's graph cannot be imported or is not a compiled graph."""


class BadStep(TwokeyError):
    """A step of a graph is written in a way that cannot run; nobody was asked."""


class StateUnknown(TwokeyError):
    """The business state that a call depends on cannot be read, so it did not run."""


class ClockWrong(TwokeyError):
    """A call did not run, since the clock of this machine is not the gateway's."""


class ThreadUnavailable(TwokeyError):
    """A thread cannot be resumed now; its job stays and is tried again."""


class ThreadUnknown(ThreadUnavailable):
    """The checkpoints of this process do not know a thread with approved calls."""

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
"""The gateway has answered: asked again, it says the same."""
