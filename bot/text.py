"""Separate trusted Slack markup from untrusted text, whose hidden characters show.

`Untrusted` is other people's text: it is shown, never interpreted. `Label` is plain
text of the product. `Template` is Slack markup: a sentence written in the code, with
checked references and other such sentences as its only variable parts. A plain `str` is
none of them.

One walk sanitises a text. It splits the text into pieces, each a stretch of the
original with its displayed form; a piece is never split. The result differs from the
original only inside white brackets: `⟦U+202E⟧`, `⟦12 blank lines⟧`.

A text may contain such brackets itself and then seems to hide something. That errs on
the safe side, and keeps `reveal` idempotent; call `has_hidden` with the original before
warning a reader.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from string import Formatter
from typing import Final, LiteralString, NamedTuple, TypeAlias, final

from keyturn.gateway.approvals.invisible_characters import (
    JOINER,
    SEQUENCE,
    STYLE,
    is_hidden,
    mark,
)

_REFERENCE: Final = re.compile(
    r"<@[UW][A-Z0-9]{1,30}>"
    r"|<!subteam\^S[A-Z0-9]{1,30}>"
    r"|<#[CGD][A-Z0-9]{1,30}>"
    r"|#[\w.-]{1,80}…?"
    r"|<!date\^[0-9]{1,11}\^[a-z_{} ]{1,60}\|[0-9A-Z :-]{1,40}>"
    r"|`[A-Za-z0-9](?:[A-Za-z0-9 _.:/-]{0,126}[A-Za-z0-9_.:/-])?`"
    r"|\*[A-Za-z0-9](?:[A-Za-z0-9 _.:/-]{0,78}[A-Za-z0-9])?\*"
    r"|/[a-z0-9_-]{1,31}"
    r"|<https?://[A-Za-z0-9.:-]{1,80}/[A-Za-z0-9_.:/?#=&%-]{0,120}\|[A-Za-z ]{1,40}>"
)
_MOMENT: Final = "{date_short_pretty} {time}"


@final
@dataclass(frozen=True, slots=True)
class Untrusted:
    """Text by a person, an agent or a tool, with its hidden characters revealed."""

    text: str

    def __post_init__(self) -> None:
        """Reveal hidden characters at every construction."""
        object.__setattr__(self, "text", reveal(self.text))


@final
@dataclass(frozen=True, slots=True)
class Label:
    """Trusted plain text: from the code, the settings or the policy."""

    text: str


@final
@dataclass(frozen=True, slots=True)
class Ref:
    """One mention, date or id that Slack markup may contain.

    Raises:
        ValueError: the text has none of the forms of this module.
    """

    text: str

    def __post_init__(self) -> None:
        """Refuse texts other than a mention, a date, an id or a command."""
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
    """A sentence in Slack's mrkdwn without untrusted text."""

    text: str = field()

    def __init__(self, fmt: LiteralString, /, **refs: Ref | Template | int) -> None:
        """Fill `{name}` in `fmt` with the reference, sentence or number of that name.

        Raises:
            ValueError: a name is missing, unused or formatted.
        """
        named, plain = _places(fmt)
        # A format such as {x:>9} or {x!r} could change a checked reference.
        if named != refs.keys() or not plain:
            raise ValueError(
                f"{fmt!r} wants {sorted(named)} and was given {sorted(refs)}; "
                "name each reference once, without a format."
            )
        shown = {
            # `int()` turns True into 1 and removes subclasses with another text.
            name: ref.text if isinstance(ref, Ref | Template) else str(int(ref))
            for name, ref in refs.items()
        }
        object.__setattr__(self, "text", fmt.format_map(shown))


# Each sentence of the code is parsed once.
@lru_cache(maxsize=1024)
def _places(fmt: str) -> tuple[frozenset[str], bool]:
    """Return the names in a format, and whether none of them has a format."""
    parts = [*Formatter().parse(fmt)]
    named = frozenset(name for _, name, _, _ in parts if name is not None)
    return named, all(not (spec or conversion) for _, _, spec, conversion in parts)


Plain: TypeAlias = Untrusted | Label
"""The types of text in a plain_text object."""


# In sentences they read as words and not as types.
untrusted, label, template = Untrusted, Label, Template


def joined(separator: LiteralString, templates: Iterable[Template]) -> Template:
    """Join sentences in Slack markup into one."""
    return _checked(separator.join(each.text for each in templates))


def parted(sentence: Template) -> tuple[str, Template]:
    """Return the first word of a sentence, such as a sign, and the rest of it."""
    first, _, rest = sentence.text.partition(" ")
    return first, _checked(rest)


def _checked(text: str) -> Template:
    """Return parts of sentences as a sentence."""
    whole = Template("")
    # Past `__init__`, which would read braces in a finished sentence as places to fill.
    object.__setattr__(whole, "text", text)
    return whole


_PEOPLE = r"<[@!][^>|]*>(?:(?:,| and) <[@!][^>|]*>)*(?: and \d+ more)?"
_DATE = re.compile(r"<!date[^>|]*\|([^>]*)>")


def spoken(sentence: Template) -> str:
    """Return a sentence as it is read aloud: without markup and signs, and no name."""
    text = _DATE.sub(r"\1", sentence.text)
    text = re.sub(_PEOPLE, "somebody", re.sub(rf",? by {_PEOPLE}", "", text))
    text = re.sub(r"^\W+|[*`]", "", text)
    return text[:1].upper() + text[1:]


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
    """Show a moment in each reader's time zone, or in UTC if Slack cannot.

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
    """Link an address from Slack; raises ValueError for a malformed one."""
    return Ref(f"<{url}|{words}>")


def link_url(url: str) -> bool:
    """Return whether `link` accepts this address."""
    return _REFERENCE.fullmatch(f"<{url}|x>") is not None


def code(identifier: str) -> Ref:
    """Show an id or a plain name, such as `ap_7` or `support-agent`, in fixed width."""
    return Ref(f"`{identifier}`")


def program(name: str) -> Ref:
    """Show the name of a program that runs calls by itself, in bold."""
    return Ref(f"*{name}*")


MIN_EXCERPT = 80
"""Minimum size of an excerpt, including the mark for its gap."""

NAME, NOTE, LINE, TEXT = 60, 120, 200, 600
"""Maximum characters of a name, a note, a line, and a short text of several lines."""

ELLIPSIS = "…"
EMPTY = "⟦empty⟧"

# Hebrew and Vietnamese stack three or four marks on a letter, a "Zalgo" text dozens.
_MARKS_PER_BASE = 4
_MARKS = frozenset({"Mn", "Me"})
_LONGEST_LETTER = 16
_SKIN_TONES = frozenset(map(chr, range(0x1F3FB, 0x1F400)))
_OF_EMOJI = frozenset([JOINER, STYLE, *map(chr, range(0xE0020, 0xE0080))])
_HANGUL_PARTS = frozenset(map(chr, (*range(0x1160, 0x1200), *range(0xD7B0, 0xD7FC))))
_ENDS = ("\n", " \t", ",;&|")  # of a line, a word, a value in a list: best first
_TAIL = 4  # one part in four of a cut excerpt is its end

# A run of blank lines or spaces pushes the following text out of sight.
_RUN = re.compile(r"(?P<lines>\n(?:[ \t]*\n){3,})|[ \t]{81,}")
_PRINTABLE = re.compile(r"[ -~\n\t]*")
_ONE_LINE = str.maketrans({"\n": mark("\n"), "\t": mark("\t")})
_MRKDWN = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class _Piece(NamedTuple):
    length: int  # characters of the original
    shown: str


def reveal(text: str) -> str:
    """Show every hidden character of a text as a mark.

    Marks replace control, bidirectional, ignorable, private, unassigned and surrogate
    code points outside of emoji, every space except the plain one, combining marks
    without a base or beyond the fourth on one, and long runs of blank lines or spaces.
    Newline and tab stay. A second call changes nothing.
    """
    if _is_usual(text):
        return _RUN.sub(_run, text)
    return "".join(piece.shown for piece in pieces(text))


def _is_usual(text: str) -> bool:
    """Return whether a text can be revealed without a walk over its letters.

    Each character of it is a separate visible letter. Runs of blanks still have to be
    marked.
    """
    if _PRINTABLE.fullmatch(text):
        return True
    # A set, because a text has few different characters.
    return all(map(_stands_alone, set(text)))


@lru_cache(maxsize=4096)
def _stands_alone(character: str) -> bool:
    """Return whether a character hides nothing, and never joins the one before it.

    Each emoji of several characters contains one that does.
    """
    return not (is_hidden(character) or _may_join(character))


def excerpt(text: str, limit: int) -> str:
    """Reveal a text and, if it is longer than `limit`, show its head and its tail.

    The gap names the number of missing characters; the result has at most `limit`
    characters, gap included. The gap is between lines, words or other values if one of
    these ends near it. Letters keep their accents.

    Raises:
        ValueError: `limit` is too small for head, gap and tail.
    """
    if limit < MIN_EXCERPT:
        raise ValueError(
            f"An excerpt of {limit!r} characters shows nothing; "
            f"allow {MIN_EXCERPT} or more, or use fit() for a label."
        )
    total = len(text)
    if total <= limit and _is_usual(text) and len(usual := reveal(text)) <= limit:
        return usual
    # Stops at the limit: a walk over a text of a megabyte once blocked every other card
    # for seconds.
    whole = _taken(pieces(text), limit)
    if sum(piece.length for piece in whole) == total:
        return "".join(piece.shown for piece in whole)
    room = limit - len(_gap(total))
    head = _taken(whole, room - room // _TAIL)
    head = head[: _end([piece.shown for piece in whole], len(head))]
    # A character takes at least one of the room. The end must not begin in a letter.
    start = total - room // _TAIL
    while start < total and _is_inside(text, start):
        start += 1
    last = [*pieces(text[start:])][::-1]
    tail = _taken(last, room // _TAIL)
    tail = tail[: _end([piece.shown for piece in last], len(tail))][::-1]
    shown = sum(piece.length for piece in (*head, *tail))
    parts = (*(p.shown for p in head), _gap(total - shown), *(p.shown for p in tail))
    return "".join(parts)


def on_one_line(text: str) -> str:
    """Return a revealed text with a mark for each line break and tab."""
    return text.translate(_ONE_LINE)


def fit(text: str, limit: int) -> str:
    """Reveal a text on one line of at most `limit` characters, with `…` where cut.

    It is cut after a word, unless that word is very long. For labels, where Slack
    counts strictly. An empty text becomes `⟦empty⟧`, since Slack refuses an empty one.

    Raises:
        ValueError: `limit` leaves no room for `⟦empty⟧`.
    """
    if limit < len(EMPTY):
        raise ValueError(f"A label needs {len(EMPTY)} characters or more, not {limit}.")
    if len(text) <= limit and _is_usual(text):
        usual = reveal(text).translate(_ONE_LINE)
        if len(usual) <= limit:
            return usual or EMPTY
    on_a_line = (_Piece(size, on_one_line(shown)) for size, shown in pieces(text))
    kept = _taken(on_a_line, limit)
    if sum(piece.length for piece in kept) == len(text):
        return "".join(piece.shown for piece in kept) or EMPTY
    head = _taken(kept, limit - len(ELLIPSIS))
    head = head[: _end([piece.shown for piece in kept], len(head))]
    return "".join(piece.shown for piece in head) + ELLIPSIS


def _end(shown: Sequence[str], most: int) -> int:
    """Return the number of pieces, at most `most`, to keep of a cut text.

    It ends with a line, else a word, else a value in a list; it is `most` if none of
    these ends in the second half.
    """
    for ends in _ENDS:
        for place in range(min(most, len(shown) - 1), most // 2, -1):
            # A line break is part of the gap; a blank or a comma is shown.
            if shown[place] in ends or (ends != "\n" and shown[place - 1] in ends):
                return place
    return most


def first_word(text: str) -> tuple[str, str]:
    """Return the first word of a text and the rest, "" if there is none.

    Any blank separates them: pasted text has other blanks than the space.
    """
    word, *rest = text.split(maxsplit=1) or [""]
    return word, "".join(rest).strip()


def escape_mrkdwn(text: str) -> str:
    """Escape & < > so that mrkdwn contains no mention, channel or link.

    It does not stop `*bold*` or a quote: mrkdwn has no escape for those. Untrusted text
    belongs in preformatted or plain text instead.
    https://docs.slack.dev/messaging/formatting-message-text#escaping
    """
    return text.translate(_MRKDWN)


def _gap(missing: int) -> str:
    return f"\n⟦{missing:,} characters not shown here⟧\n"


def _taken(pieces: Iterable[_Piece], room: int) -> list[_Piece]:
    """Return the first pieces that fit; a long text is not walked to its end."""
    taken: list[_Piece] = []
    for piece in pieces:
        room -= len(piece.shown)
        if room < 0:
            break
        taken.append(piece)
    return taken


def pieces(text: str) -> Iterator[_Piece]:
    """Yield the parts of a text that are shown or cut as a whole."""
    start = 0
    for run in _RUN.finditer(text):
        yield from _letters(text[start : run.start()])
        yield _Piece(run.end() - run.start(), _run(run))
        start = run.end()
    yield from _letters(text[start:])


def _run(run: re.Match[str]) -> str:
    if run["lines"]:
        return f"\n⟦{run[0].count(chr(10)) - 1:,} blank lines⟧\n"
    return f"⟦{len(run[0]):,} spaces or tabs⟧"


def _letters(text: str) -> Iterator[_Piece]:
    """Yield each letter and each emoji as a whole; a hidden character is separate."""
    if _is_usual(text):
        yield from (_Piece(1, character) for character in text)
        return
    start = 0
    for emoji in SEQUENCE.finditer(text):
        yield from _plain_letters(text[start : emoji.start()])
        yield _Piece(len(emoji[0]), emoji[0])
        start = emoji.end()
    yield from _plain_letters(text[start:])


def _plain_letters(text: str) -> Iterator[_Piece]:
    piece, marks = "", 0
    for character in text:
        kind = unicodedata.category(character)
        if piece and _joins(piece, marks, character, kind):
            piece += character
            marks += kind in _MARKS
            continue
        if piece:
            yield _Piece(len(piece), piece)
        if is_hidden(character) or kind in _MARKS:
            yield _Piece(1, mark(character))
            piece = ""
        else:
            piece, marks = character, 0
    if piece:
        yield _Piece(len(piece), piece)


def _joins(piece: str, marks: int, character: str, kind: str) -> bool:
    """Return whether a character is drawn as part of the letter before it."""
    # An accent on a blank or a line break is shown as a mark: it belongs to no letter.
    if is_hidden(character) or piece.isspace() or len(piece) >= _LONGEST_LETTER:
        return False
    if kind in _MARKS:
        return marks < _MARKS_PER_BASE
    if _is_flag(character):
        # Two of these letters are one flag; a third begins the next one.
        return len(piece) == 1 and _is_flag(piece)
    return _may_join(character)


def _is_inside(text: str, place: int) -> bool:
    """Return whether a letter or an emoji may go on from the character before."""
    here, before = text[place], text[place - 1]
    return _may_join(here) or here in _OF_EMOJI or before == JOINER


def _may_join(character: str) -> bool:
    """Return whether a character can be part of a letter that begins before it."""
    kind = unicodedata.category(character)
    is_part = character in _SKIN_TONES or character in _HANGUL_PARTS
    return kind in _MARKS or kind == "Mc" or is_part or _is_flag(character)


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


_LINE_SEARCH = 400
_LONGEST_TOKEN = 40
# A mark such as ⟦U+202E⟧ that the cut would tear apart.
_OPEN_MARK = re.compile(r"⟦[^⟧\n]*$")


def chunks(text: str, size: int) -> list[str]:
    """Return parts of at most ``size`` characters; joined, they are the text.

    A part ends after a line break when there is one near its end, else never inside a
    mark for a hidden character and never between a letter and its accents.

    Args:
        text: already revealed; an empty text is one empty part.
        size: more than 100.
    """
    parts: list[str] = []
    start = 0
    while len(text) - start > size:
        end = _end_of_part(text, start, start + size)
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def _end_of_part(text: str, start: int, end: int) -> int:
    newline = text.rfind("\n", max(start, end - _LINE_SEARCH), end)
    # Not at `start` itself: that part would be a lone line break, an empty box.
    if newline > start:
        return newline + 1
    mark = _OPEN_MARK.search(text, max(start + 1, end - _LONGEST_TOKEN), end)
    if mark:
        return mark.start()
    least = max(start + 1, end - _LONGEST_TOKEN)
    # Bounded: a text of accents alone has no good place for a cut.
    while end > least and unicodedata.category(text[end])[0] == "M":
        end -= 1
    return end
