"""Mark the calls of a card that differ from the others as mistakes often do.

A mark is a fact about the sealed arguments of one call, shown to reviewers. It never
changes the tier or the decision. It contains only names of arguments, numbers of calls
and formatted medians, so the value of an argument cannot add text to it.

Every check compares a call with the other calls of its tool: with fewer than five,
there are no marks. A difference that many calls have is no mistake, and is not marked.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import permutations
from statistics import median

from pydantic import JsonValue

from keyturn.gateway.approvals.evidence import HIDDEN, is_card_number, redacted
from keyturn.gateway.approvals.invisible_characters import is_hidden
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.repeating import doubled
from keyturn.gateway.policy.formats import Call, Total, formatted, number_in, total_of
from keyturn.gateway.policy.windows import MICRO

_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}", re.ASCII)
_REMAINDER, _MODULUS = 1, 97
_GAPS = re.compile(r"[\s\u2010-\u2015-]+")
_DIGITS = re.compile(r"[0-9]{12,19}", re.ASCII)
_NUMBERS = re.compile(r"[0-9]+")
_ADDRESS = re.compile(r"[^@\s<>]+@([^@\s<>]+)")
_URL = re.compile(r"https?:/*([^/?#]*)", re.IGNORECASE)
_IP = re.compile(r"(?:[0-9.]+|0x[0-9a-f.x]+|\[.*)(?::[0-9]*)?", re.ASCII)
_SHORTEST, _LONGEST = 5, 60
"""Length of texts that can be one letter apart, in characters."""
# Letters that look like Latin ones, folded: Cyrillic, then Greek. The last three are
# read wrong in Latin itself.
_AS_LATIN = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u04bb\u0501\u051b"
    "\u051d\u0432\u043a\u043c\u043d\u0442\u03b1\u03bf\u03bd\u03c1\u03c4\u03c5\u03b9"
    "\u03ba\u0131" + "01|",
    "aeopcyxsijhdqwbkmht" + "aovptuik" + "i" + "ol" + "l",
)


def is_iban(text: str) -> bool:
    """Return whether a text has the form and the check digits of an IBAN.

    ISO 13616-1: the first four characters go to the end, letters become 10 to 35, and
    the number leaves 1 when divided by 97.
    """
    plain = _GAPS.sub("", text).upper()
    if not _IBAN.fullmatch(plain):
        return False
    number = "".join(str(int(one, 36)) for one in plain[4:] + plain[:4])
    return int(number) % _MODULUS == _REMAINDER


def is_card(text: str) -> bool:
    """Return whether a text has the form and the check digit of a card number."""
    plain = _GAPS.sub("", text)
    return _DIGITS.fullmatch(plain) is not None and is_card_number([*map(int, plain)])


def domain_of(text: str) -> str:
    """Return the domain of an e-mail address in lower case; "" for another text."""
    found = _ADDRESS.fullmatch(text.strip())
    return found[1].casefold() if found else ""


def host_of(text: str) -> str:
    """Return the host and port of a URL in lower case; "" for another text."""
    found = _URL.match(text)
    return found[1].rpartition("@")[2].casefold() if found else ""


def is_misleading(url: str) -> bool:
    """Return whether a URL can lead to another host than people read in it.

    These have a user name, a backslash, a host of digits, or letters of other alphabets
    in the host, also as Punycode.
    """
    found, host = _URL.match(url), host_of(url)
    is_odd = "xn--" in host or _IP.fullmatch(host) is not None or not host.isascii()
    return found is not None and (is_odd or "@" in found[1] or "\\" in url)


def skeleton(text: str) -> str:
    """Return a text as people read it: equal for texts that look the same."""
    seen = text.casefold()
    if not seen.isascii():
        whole = unicodedata.normalize("NFKD", seen)
        kept = (
            one for one in whole if not (unicodedata.combining(one) or is_hidden(one))
        )
        seen = "".join(kept)
    read = seen.translate(_AS_LATIN).replace("rn", "m").replace("vv", "w")
    return " ".join(read.split())


def look_alikes(texts: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of different texts that people take for the same, in order.

    They read the same, or differ by one letter or two swapped ones. Numbers that differ
    by a digit are different numbers.
    """
    by_form: dict[tuple[str, ...], set[str]] = {}
    for text in texts:
        seen = skeleton(text)
        forms: set[tuple[str, ...]] = {(seen,)}
        if _SHORTEST <= len(seen) <= _LONGEST:
            # Two texts with one letter more or less share a form without a letter.
            numbers = "/".join(_NUMBERS.findall(text))
            forms.add((seen, numbers))
            forms |= {(seen[:at] + seen[at + 1 :], numbers) for at in range(len(seen))}
        for form in forms:
            by_form.setdefault(form, set()).add(text)
    # No pairs: a hundred texts that read the same would have thousands.
    return sorted({tuple(sorted(one)) for one in by_form.values() if len(one) > 1})


_FEWEST = 5
"""Calls to compare with; among fewer, none is unusual."""
_SHARE = 20
"""One in this many calls, and always two, may have a mark of one kind."""
_GROUP = 4
"""Calls of one cause or customer whose numbers are compared among themselves."""
_TIMES = 1.8
"""Numbers within this factor are never far from each other."""
_SPREADS = 3 * 1.4826
"""Median distances of a far number: three standard deviations of normal numbers."""
_SHARED = math.log(4)
"""Numbers of several calls are not far within this distance of the median."""
_CROWD = 8
"""If more than one in this many numbers are far, that is how the numbers are."""
_PAIR = 2
_COLUMNS = 30
"""Arguments to compare: agents may send thousands, and pairs of them are compared."""
_DOMAIN, _HOST = "domain of ", "host of "


class MarkKind(StrEnum):
    """Kinds of marks; each value is its text, with fields of a `Mark`."""

    FAR = "{name} is far from the others{of}; the median is {usual}"
    OVER = "{name} is more than {other}"
    REPEATED = "{name} repeats; in all other calls it is unique"
    OTHER = "{name} differs from all others"
    APART = "{name} and {other} do not match{like}"
    CHECKSUM = "the check digits of {name} are wrong"
    LOOKALIKE = "{name} reads almost like that of {calls}"
    ADDRESS = "{name} can lead to another host than it shows"
    NEW = "no earlier call has this {name}"


@dataclass(frozen=True, slots=True)
class Mark:
    """One unusual fact about one call.

    Attributes:
        index: of the call.
        kind: of the fact.
        name: the argument; untrusted.
        other: the argument that it is compared with or grouped by; "" for none.
        usual: the usual number, formatted.
        like: the calls that it resembles.
    """

    index: int
    kind: MarkKind
    name: str
    other: str = ""
    usual: str = ""
    like: tuple[int, ...] = ()


Keys = Mapping[int, str]
"""A text for each call, by its index."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The calls of one tool on a card, argument by argument.

    Attributes:
        items: the calls.
        columns: the values that cards may show, by the path of the argument; those of
            the outermost arguments.
        totals: the numbers that the policy adds up.
    """

    items: Sequence[Item]
    columns: Mapping[str, Mapping[int, JsonValue]]
    totals: Sequence[Total]

    def few(self, indexes: Iterable[int]) -> set[int]:
        """Return these calls, or none if they are too many to be mistakes."""
        found = {*indexes}
        return found if len(found) <= max(2, len(self.items) // _SHARE) else set()

    def texts(self) -> Iterator[tuple[str, Keys]]:
        """Yield the arguments that are texts in most calls."""
        for name, column in self.columns.items():
            texts = {at: one for at, one in column.items() if isinstance(one, str)}
            if 2 * len(texts) > len(self.items):
                yield name, texts

    def names(self) -> Iterator[tuple[str, Keys]]:
        """Yield the same, of addresses only their domain, and of links their host."""
        for name, texts in self.texts():
            found = name, texts
            for part, part_of in ((_DOMAIN, domain_of), (_HOST, host_of)):
                parts = {at: part_of(one) for at, one in texts.items() if part_of(one)}
                if 2 * len(parts) > len(texts):
                    found = f"{part}{name}", parts
            yield found

    def groupings(self) -> dict[str, Keys]:
        """Return the arguments that sort the calls into groups, such as a cause."""
        found: dict[str, Keys] = {}
        for name, column in self.columns.items():
            keys = {at: str(one) for at, one in column.items()}
            is_full = len(keys) == len(self.items)
            is_group = 1 < len({*keys.values()}) <= len(keys) // 2
            if is_full and is_group and name not in {one.name for one in self.totals}:
                found[name] = keys
        return found


def rows_of(items: Sequence[Item]) -> Rows:
    """Return calls of one tool, argument by argument."""
    columns: dict[str, dict[int, JsonValue]] = {}
    calls = [Call(item.index, redacted(item.args, item.redact)) for item in items]
    for call in calls:
        for name, value in _flat(call.args):
            if value not in (None, "", HIDDEN):
                columns.setdefault(name, {})[call.index] = value
    outermost = sorted(columns, key=lambda name: name.count("."))[:_COLUMNS]
    # For several policies the totals that all of them name.
    named = [
        one for one in items[0].totals if all(one in other.totals for other in items)
    ]
    totals = [total_of(one, calls) for one in named]
    return Rows(items, {name: columns[name] for name in outermost}, totals)


def _flat(value: JsonValue, name: str = "") -> Iterator[tuple[str, JsonValue]]:
    if not isinstance(value, dict | list):
        yield name, value
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in pairs:
        yield from _flat(one, f"{name}.{key}" if name else str(key))


def marks_of(approval: Approval) -> list[Mark]:
    """Return the marks of the pending calls of a card, in the order of the calls."""
    found: list[Mark] = []
    for tool in dict.fromkeys(item.tool for item in approval.items):
        items = [item for item in approval.items if item.tool == tool]
        if len(items) >= _FEWEST:
            rows = rows_of(items)
            found += [mark for check in CHECKS for mark in check(rows)]
    # Calls with the same effect have a warning of their own.
    same = [{item.index for item in group} for group in doubled(approval)]
    waiting = {item.index for item in approval.items if item.is_pending}
    kept = (one for one in found if {one.index, *one.like} not in same)
    return sorted(
        (one for one in kept if one.index in waiting), key=lambda one: one.index
    )


def _far(rows: Rows) -> Iterator[Mark]:
    """Find numbers far from the others of their cause or customer."""
    choices = {"": {item.index: "" for item in rows.items}, **rows.groupings()}
    for total in rows.totals:
        for at, name in _outliers(rows, total, choices).items():
            keys = choices[name]
            group = [one for one in total.numbers if keys[one] == keys[at]]
            usual = total.usual(group if len(group) >= _GROUP else None)
            yield Mark(at, MarkKind.FAR, total.name, other=name, usual=usual)


def _outliers(rows: Rows, total: Total, choices: Mapping[str, Keys]) -> dict[int, str]:
    """Return the calls with a number far from the others, each with its grouping.

    Amounts have a long tail, so their logarithms are compared, in the groups that
    explain them best. A number of another sign than most is far from all of them.
    """
    numbers = total.numbers
    if len(numbers) < _FEWEST:
        return {}
    middle = median(numbers.values())
    logs = {at: math.log(abs(n)) for at, n in numbers.items() if n * middle > 0}
    odd = rows.few(at for at, n in numbers.items() if at not in logs and n != middle)
    away = {name: _distances(logs, keys) for name, keys in choices.items()}
    best = min(away, key=lambda name: sum(map(abs, away[name].values())))
    limits = _limits(away[best], choices[best])
    shared = Counter(numbers.values())
    far = {
        at: abs(one)
        for at, one in away[best].items()
        # A number that several calls have is usual, such as two months of a plan.
        if abs(one)
        > max(limits[at], _SHARED if shared[numbers[at]] >= _GROUP - 1 else 0)
    }
    # So is a distance that many have: only those well beyond it count.
    crowd = sorted(far.values())[: -max(_GROUP, len(numbers) // _CROWD)]
    usual = max([*crowd, -math.inf]) + math.log(_TIMES)
    far = {at: one for at, one in far.items() if one > usual}
    return dict.fromkeys(odd, "") | dict.fromkeys(far, best)


def _distances(logs: Mapping[int, float], keys: Keys) -> dict[int, float]:
    """Return the distance of each number from the median of the others of its group."""
    groups = _groups({at: keys[at] for at in logs})
    found: dict[int, float] = {}
    for at, one in logs.items():
        group = groups[keys[at]]
        among = group if len(group) >= _GROUP else logs
        others = [logs[other] for other in among if other != at]
        found[at] = one - median(others or [one])
    return found


def _limits(away: Mapping[int, float], keys: Keys) -> dict[int, float]:
    """Return the distance from which a number is far, by the spread of its group.

    Numbers above the median and below it have a spread each: long tails are one-sided.
    """
    found: dict[int, float] = {}
    for at, one in away.items():
        group = [d for other, d in away.items() if keys[other] == keys[at]]
        among = group if len(group) >= 2 * _GROUP else [*away.values()]
        side = median(abs(d) for d in among if d * one >= 0)
        spread = max(side, median(map(abs, among)))
        found[at] = max(math.log(_TIMES), _SPREADS * spread)
    return found


def _over(rows: Rows) -> Iterator[Mark]:
    """Find amounts above the paid amount of the same call."""
    numbers = {name: _numbers(column) for name, column in rows.columns.items()}
    for total in rows.totals:
        own = numbers.get(total.name, {})
        for name, paid in numbers.items():
            shares = {at: own[at] / paid[at] for at in own.keys() & paid if paid[at]}
            usual = [one for one in shares.values() if one <= 1 <= 2 * one]
            is_paid = 1 in usual and 2 * len(usual) >= max(len(own), 2 * _FEWEST)
            if is_paid and name != total.name:
                for at in rows.few(at for at, one in shares.items() if one > 1):
                    yield Mark(at, MarkKind.OVER, total.name, other=name)


def _numbers(column: Mapping[int, JsonValue]) -> dict[int, Decimal]:
    found = {at: number_in(one, "number") for at, one in column.items()}
    return {at: one for at, one in found.items() if one is not None}


def _repeated(rows: Rows) -> Iterator[Mark]:
    """Find a value that repeats in a column of values that are otherwise unique."""
    for name, column in rows.columns.items():
        keys = {at: str(one).casefold().strip() for at, one in column.items()}
        # Amounts and days repeat by chance; numbers of one length are ids.
        is_number = 2 * len(_numbers(column)) > len(keys)
        is_amount = is_number and len({*map(len, keys.values())}) > 1
        is_date = all(formatted(one, "date") for one in column.values())
        groups = [group for group in _groups(keys).values() if len(group) > 1]
        repeated = rows.few(at for group in groups for at in group)
        if len(keys) < _FEWEST or is_amount or is_date or not repeated:
            continue
        for group in groups:
            yield from _marks(MarkKind.REPEATED, name, group, group)


def _marks(
    kind: MarkKind, name: str, indexes: Iterable[int], like: Sequence[int], **of: str
) -> Iterator[Mark]:
    """Yield a mark for each of these calls, with the others that it is like."""
    for at in indexes:
        others = tuple(one for one in like if one != at)
        yield Mark(at, kind, name, like=others, **of)


def _groups(keys: Keys) -> dict[str, list[int]]:
    """Return the calls that have the same text, by the text."""
    found: dict[str, list[int]] = {}
    for at, key in keys.items():
        found.setdefault(key, []).append(at)
    return found


def _other(rows: Rows) -> Iterator[Mark]:
    """Find the one call whose value or host differs from those of all others."""
    for name, keys in rows.names():
        sizes = sorted(_groups(keys).values(), key=len)
        is_rare = len(sizes) >= _PAIR and len(sizes[0]) == 1 and len(sizes[1]) >= _GROUP
        if is_rare and (len(sizes) == _PAIR or name.startswith(_HOST)):
            yield Mark(sizes[0][0], MarkKind.OTHER, name)


def _apart(rows: Rows) -> Iterator[Mark]:
    """Find two arguments that belong together in all other calls."""
    texts = dict(rows.texts())
    named = texts | dict(rows.names())
    for (name, first), (other, second) in permutations(named.items(), 2):
        both = first.keys() & second.keys()
        same = {at for at in both if first[at] == second[at]}
        if len(same) < _FEWEST:
            same = {at for at in both if _is_in(first[at], second[at])}
        if len(same) >= _FEWEST:
            apart = rows.few(both - same)
            yield from _marks(MarkKind.APART, name, apart, (), other=other)
        elif {name, other} <= texts.keys():
            group, bad = _unpaired(first, second)
            yield from _marks(MarkKind.APART, name, bad, group, other=other)


def _is_in(part: str, text: str) -> bool:
    return len(part) >= _GROUP and part.casefold() in text.casefold()


def _unpaired(first: Keys, second: Keys) -> tuple[list[int], list[int]]:
    """Return the calls of the one value with several partners, and the odd ones."""
    groups = [group for group in _groups(first).values() if len(group) > 1]
    partners = [Counter(second.get(at, "") for at in group) for group in groups]
    mixed = [n for n, one in enumerate(partners) if len(one) > 1]
    # Each value has its own partner, as a customer has a name.
    is_pair = 4 * len({*second.values()}) > 3 * len({*first.values()})
    if len(mixed) != 1 or len(groups) < _PAIR or not is_pair:
        return [], []
    group, count = groups[mixed[0]], partners[mixed[0]]
    least = min(count.values())
    return group, [at for at in group if count[second.get(at, "")] == least]


def _checksum(rows: Rows) -> Iterator[Mark]:
    """Find account and card numbers with wrong check digits, where most are right."""
    for name, texts in rows.texts():
        for is_right in (is_iban, is_card):
            wrong = [at for at, one in texts.items() if not is_right(one)]
            if len(texts) - len(wrong) >= _GROUP:
                yield from _marks(MarkKind.CHECKSUM, name, rows.few(wrong), ())


def _lookalike(rows: Rows) -> Iterator[Mark]:
    """Find names, domains and hosts that read almost like those of other calls."""
    for name, texts in rows.names():
        groups = _groups({at: one.casefold() for at, one in texts.items()})
        likes: dict[int, list[int]] = {}
        for alike in look_alikes(groups):
            usual, *rest = sorted((groups[one] for one in alike), key=len, reverse=True)
            for rare in rest:
                likes |= dict.fromkeys(rare, usual)
            if len(rest[0]) == len(usual):
                likes |= dict.fromkeys(usual, rest[0])
        for at in rows.few(likes):
            yield from _marks(MarkKind.LOOKALIKE, name, [at], likes[at])


def _address(rows: Rows) -> Iterator[Mark]:
    """Find links that can lead to another host than they show."""
    for name, texts in rows.texts():
        odd = rows.few(at for at, one in texts.items() if is_misleading(one))
        yield from _marks(MarkKind.ADDRESS, name, odd, ())


def _new(rows: Rows) -> Iterator[Mark]:
    """Find the one value without earlier calls in a counting window of the policy."""
    earlier: dict[tuple[str, str], dict[int, int]] = {}
    for item in rows.items:
        for one in item.past.totals:
            if one.is_count:
                counts = earlier.setdefault((one.window, one.by), {})
                counts[item.index] = one.others_micro
    for (_, by), counts in earlier.items():
        name = by.removeprefix("args.")
        column = rows.columns.get(name, {})
        keys = {at: str(column[at]).casefold() for at in counts.keys() & column}
        # The other calls of the card count as well.
        new = [
            group
            for group in _groups(keys).values()
            if max(counts[at] for at in group) < len(group) * MICRO
        ]
        if len(new) == 1 and len(keys) >= _FEWEST:
            yield from _marks(MarkKind.NEW, name, rows.few(new[0]), ())


CHECKS = (_far, _over, _repeated, _other, _apart, _checksum, _lookalike, _address, _new)
"""Each check takes the calls of one tool. A new kind of mark is one more check."""
