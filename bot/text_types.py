"""Text types that separate trusted Slack mrkdwn from untrusted text.

`Untrusted` is text of strangers: it is shown, never interpreted. `Label` is plain text
of ours. `Template` is Slack markup: a sentence written in the code, with checked
references as its only variable parts. A plain `str` is none of them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from string import Formatter
from typing import Final, LiteralString, TypeAlias, final

from keyturn.bot.text import reveal

_REFERENCE: Final = re.compile(
    r"<@[UW][A-Z0-9]{1,30}>"
    r"|<!subteam\^S[A-Z0-9]{1,30}>"
    r"|<#[CGD][A-Z0-9]{1,30}>"
    r"|#[\w.-]{1,80}…?"
    r"|<!date\^[0-9]{1,11}\^[a-z_{} ]{1,60}\|[0-9A-Z :-]{1,40}>"
    r"|`[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}`"
    r"|/[a-z0-9_-]{1,31}"
    r"|<https?://[A-Za-z0-9.:-]{1,80}/[A-Za-z0-9_.:/?#=&%-]{0,120}\|[A-Za-z ]{1,40}>"
)
_MOMENT: Final = "{date_short_pretty} {time}"


@final
@dataclass(frozen=True, slots=True)
class Untrusted:
    """Hold text that a person, an agent or a tool wrote, hidden characters revealed."""

    text: str

    def __post_init__(self) -> None:
        """Reveal hidden characters, however the object was made."""
        object.__setattr__(self, "text", reveal(self.text))


@final
@dataclass(frozen=True, slots=True)
class Label:
    """Hold plain text of ours: from the code, the settings or the policy."""

    text: str


@final
@dataclass(frozen=True, slots=True)
class Ref:
    """Hold one mention, date or id that Slack markup may contain.

    Raises:
        ValueError: the text is none of the forms this module makes.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse everything but a mention, a date, an id or a command."""
        # `fullmatch`, since `match` with `$` accepts a line break at the end.
        if not _REFERENCE.fullmatch(self.text):
            raise ValueError(
                f"{self.text!r} is no reference; make one with user(), usergroup(), "
                "channel(), moment(), code(), link() or "
                "slash_command()."
            )


@final
@dataclass(frozen=True, slots=True, init=False)
class Template:
    """Hold a sentence in Slack's mrkdwn that no stranger wrote a letter of."""

    text: str = field()

    def __init__(self, fmt: LiteralString, /, **refs: Ref | int) -> None:
        """Fill `{name}` in `fmt` with the reference or number of that name.

        Raises:
            ValueError: a name is missing, unused or formatted.
        """
        named, plain = _places(fmt)
        # A format such as {x:>9} or {x!r} could make something else of a checked
        # reference.
        if named != refs.keys() or not plain:
            raise ValueError(
                f"{fmt!r} wants {sorted(named)} and was given {sorted(refs)}; "
                "name each reference once, without a format."
            )
        shown = {
            # `int()` turns True into 1 and leaves no subclass with a text of its own.
            name: ref.text if isinstance(ref, Ref) else str(int(ref))
            for name, ref in refs.items()
        }
        object.__setattr__(self, "text", fmt.format_map(shown))


# Each sentence of the code is looked through once.
@lru_cache(maxsize=1024)
def _places(fmt: str) -> tuple[frozenset[str], bool]:
    """Return the names in a format, and whether they stand there without a format."""
    parts = [*Formatter().parse(fmt)]
    named = frozenset(name for _, name, _, _ in parts if name is not None)
    return named, all(not (spec or conversion) for _, _, spec, conversion in parts)


Plain: TypeAlias = Untrusted | Label
"""What may stand in a plain_text object."""


def untrusted(text: str) -> Untrusted:
    """Take text of a stranger; it is only ever shown as preformatted or plain text."""
    return Untrusted(text)


def label(text: str) -> Label:
    """Take plain text of ours; Slack interprets nothing in it."""
    return Label(text)


def template(fmt: LiteralString, /, **refs: Ref | int) -> Template:
    """Make a sentence in Slack markup: `template("Asked by {who}", who=user(id))`.

    Raises:
        ValueError: a name is missing, unused or formatted.
    """
    return Template(fmt, **refs)


def joined(separator: LiteralString, templates: Iterable[Template]) -> Template:
    """Join sentences in Slack markup into one."""
    whole = Template("")
    # Past `__init__`, which would read braces in a finished sentence as places to fill.
    object.__setattr__(whole, "text", separator.join(each.text for each in templates))
    return whole


def parted(sentence: Template) -> tuple[str, Template]:
    """Return the first word of a sentence, such as a sign, and the rest of it."""
    first, _, rest = sentence.text.partition(" ")
    whole = Template("")
    object.__setattr__(whole, "text", rest)  # as in `joined`
    return first, whole


def user(user_id: str) -> Ref:
    """Mention a person by id (`U…`, `W…`)."""
    return Ref(f"<@{user_id}>")


def usergroup(usergroup_id: str) -> Ref:
    """Mention a user group by id (`S…`); this notifies its members."""
    return Ref(f"<!subteam^{usergroup_id}>")


def channel(channel_id: str) -> Ref:
    """Name a channel by id (`C…`, `G…`, `D…`), or by its name as it is (`#name`)."""
    return Ref(channel_id if channel_id.startswith("#") else f"<#{channel_id}>")


def moment(at: datetime) -> Ref:
    """Show a moment in each reader's own time zone, with UTC where Slack cannot.

    Raises:
        ValueError: `at` has no time zone.
    """
    if at.tzinfo is None:
        raise ValueError(f"{at!r} has no time zone; pass an aware datetime.")
    utc = at.astimezone(UTC)
    return Ref(f"<!date^{int(utc.timestamp())}^{_MOMENT}|{utc:%Y-%m-%d %H:%M} UTC>")


def slash_command(name: str) -> Ref:
    """Name a slash command, such as ``/approvals``."""
    return Ref(name)


def link(url: str, words: LiteralString) -> Ref:
    """Link an address that Slack gave us; raises ValueError for an odd one."""
    return Ref(f"<{url}|{words}>")


def link_url(url: str) -> bool:
    """Return whether `link` takes this address."""
    return _REFERENCE.fullmatch(f"<{url}|x>") is not None


def code(identifier: str) -> Ref:
    """Show an id of ours, such as `ap_7` or `sha256:9f…`, in fixed width."""
    return Ref(f"`{identifier}`")
