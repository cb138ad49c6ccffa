"""Plant one mistake in a batch of calls, and make cards of the batches.

Ten kinds of mistakes, each where it can happen: a call that is sent twice, a number
that belongs to another call, a slip of the keyboard, and what somebody plants who wants
money or a click. Like `bench.batches`, this module knows nothing of the marks.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping
from dataclasses import replace

from bench.batches import (
    WINDOW_MS,
    Batch,
    Maker,
    card_refunds,
    emails,
    links,
    payouts,
    plan_credits,
    refunds,
    webhooks,
)
from keyturn.gateway.approvals.precedents import Past, WindowTotal
from keyturn.gateway.approvals.record import Approval, Context, Item
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.policy.windows import MICRO
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Tier, Verb

_CONFUSED = {"a": "\u0430", "e": "\u0435", "o": "\u043e", "i": "\u0456", "l": "1"}
_KEYS = {"0": "O", "1": "I", "5": "S", "8": "B", "2": "Z"}


def _two(maker: Maker, batch: Batch) -> tuple[int, int]:
    """Return a call to spoil and another one."""
    first, second = maker.rng.sample(range(len(batch.rows)), 2)
    return first, second


def _others(maker: Maker, batch: Batch, name: str) -> tuple[int, int]:
    """Return two calls that differ in an argument; there are always some."""
    to, of = _two(maker, batch)
    while batch.rows[to][name] == batch.rows[of][name]:
        to, of = _two(maker, batch)
    return to, of


def _planted(batch: Batch, place: int) -> Batch:
    return replace(batch, planted=place)


def _doubled(maker: Maker, batch: Batch) -> Batch:
    """The same order is sent twice, once perhaps with another amount."""
    to, of = _two(maker, batch)
    values = dict(batch.rows[of])
    if maker.rng.random() < 0.5 and isinstance(values.get("amount"), float):
        values["amount"] = maker.amount(40, 0.8)
    return _planted(batch.changed(to, **values), to)


def _reused(maker: Maker, batch: Batch) -> Batch:
    """An account, a card or a partner's host of another call."""
    name = next(one for one in ("card", "iban", "host") if one in batch.rows[0])
    to, of = _others(maker, batch, name)
    copied = [name, *(["url"] if name == "host" else [])]
    values = {one: batch.rows[of][one] for one in copied}
    return _planted(batch.changed(to, **values), to)


def _wrong_customer(maker: Maker, batch: Batch) -> Batch:
    """The customer of another call."""
    to, of = _others(maker, batch, "customer_id")
    value = batch.rows[of]["customer_id"]
    return _planted(batch.changed(to, customer_id=value), to)


def _slip(maker: Maker, batch: Batch) -> Batch:
    """A lost decimal point: ten or a hundred times the amount."""
    to, _ = _two(maker, batch)
    amount = _number(batch.rows[to]["amount"])
    times = maker.rng.choice([10, 100])
    return _planted(batch.changed(to, amount=round(amount * times, 2)), to)


def _over(maker: Maker, batch: Batch) -> Batch:
    """1.9 times what the call names as paid, or what its plan costs."""
    to, _ = _two(maker, batch)
    row = batch.rows[to]
    paid = row.get("paid", row.get("invoice_total", row["amount"]))
    return _planted(batch.changed(to, amount=round(_number(paid) * 1.9, 2)), to)


def _typed(maker: Maker, batch: Batch) -> Batch:
    """A slip in an account or card number."""
    to, _ = _two(maker, batch)
    name = "iban" if "iban" in batch.rows[to] else "card"
    old = str(batch.rows[to][name])
    return _planted(batch.changed(to, **{name: _mistyped(maker.rng, old)}), to)


def _mistyped(rng: random.Random, old: str) -> str:
    while True:
        at = rng.randrange(4, len(old) - 1)
        how = rng.choice(["letter", "digit", "order", "lost"])
        new = {
            "letter": old[:at] + _KEYS.get(old[at], "O") + old[at + 1 :],
            "digit": old[:at] + rng.choice(string.digits) + old[at + 1 :],
            "order": old[:at] + old[at + 1] + old[at] + old[at + 2 :],
            "lost": old[:at] + old[at + 1 :],
        }[how]
        if new != old:
            return new


def _domain(maker: Maker, batch: Batch) -> Batch:
    """A domain of an address with one letter less, more, or in the wrong place."""
    name = "email" if "email" in batch.rows[0] else "to"
    domains = [str(row[name]).partition("@")[2] for row in batch.rows]
    often = [n for n, one in enumerate(domains) if one and domains.count(one) > 1]
    if not often:
        # No two share a domain: nobody can compare them.
        return batch
    to = maker.rng.choice(often)
    local, _, domain = str(batch.rows[to][name]).partition("@")
    wrong = domain
    while wrong == domain:
        wrong = _misspelt(maker.rng, domain)
    return _planted(batch.changed(to, **{name: f"{local}@{wrong}"}), to)


def _misspelt(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text.split(".", maxsplit=1)[0]) - 1)
    return rng.choice(
        [
            text[:at] + text[at + 1 :],
            text[:at] + text[at] + text[at:],
            text[:at] + text[at + 1] + text[at] + text[at + 2 :],
            text[:at] + rng.choice(string.ascii_lowercase) + text[at + 1 :],
        ]
    )


def _lookalike(maker: Maker, batch: Batch) -> Batch:
    """The name of another call's payee, with a letter that only looks right."""
    to, of = _two(maker, batch)
    name = next(one for one in ("payee", "name", "customer") if one in batch.rows[to])
    text = str(batch.rows[of][name])
    places = [n for n, one in enumerate(text) if one in _CONFUSED]
    if places and maker.rng.random() < 0.6:
        at = maker.rng.choice(places)
        wrong = text[:at] + _CONFUSED[text[at]] + text[at + 1 :]
    else:
        at = maker.rng.randrange(1, len(text) - 1)
        wrong = text[:at] + text[at + 1 :]
    return _planted(batch.changed(to, **{name: wrong}), to)


def _misleading(maker: Maker, batch: Batch) -> Batch:
    """A link that goes elsewhere than it seems to."""
    to, _ = _two(maker, batch)
    url = str(batch.rows[to]["url"])
    host = url.split("/")[2]
    letters = [one for one in "aeo" if one in host]
    at = maker.rng.randrange(len(host.split(".", maxsplit=1)[0]))
    wrong = maker.rng.choice(
        [
            f"{host}@login-{maker.rng.randint(10, 99)}.example.net",
            host.replace(letters[0], _CONFUSED[letters[0]], 1),
            host[:at] + host[at + 1 :],
            f"{host}.account-{maker.rng.randint(10, 99)}.example.net",
            f"{maker.rng.randint(11, 99)}.{maker.rng.randint(0, 255)}.17.4",
        ]
    )
    return _planted(batch.changed(to, url=url.replace(host, wrong, 1)), to)


def _unseen(maker: Maker, batch: Batch) -> Batch:
    """A payee or host without earlier calls, while all others have some."""
    to, _ = _two(maker, batch)
    host = f"in.{maker.rng.randint(100, 999)}.example"
    changed = batch.changed(to, host=host, url=f"https://{host}/in")
    if batch.seen_by == "args.iban":
        changed = batch.changed(to, iban=maker.iban())
    return _planted(replace(changed, unseen=frozenset({to})), to)


def _number(value: object) -> float:
    assert isinstance(value, int | float), value
    return value


KINDS: Mapping[str, tuple[Callable[[Maker, Batch], Batch], tuple[str, ...]]] = {
    "sent twice": (_doubled, ("refunds", "plan_credits", "payouts", "emails")),
    "number of another call": (_reused, ("payouts", "card_refunds", "webhooks")),
    "wrong customer": (_wrong_customer, ("refunds",)),
    "lost decimal point": (_slip, ("refunds", "plan_credits", "payouts")),
    "1.9 times what was paid": (_over, ("refunds", "payouts", "plan_credits")),
    "mistyped account or card": (_typed, ("payouts", "card_refunds")),
    "misspelt domain": (_domain, ("refunds", "plan_credits", "emails")),
    "look-alike name": (_lookalike, ("payouts", "webhooks")),
    "misleading link": (_misleading, ("links", "webhooks")),
    "unseen payee or host": (_unseen, ("payouts", "webhooks")),
}
"""Each kind of mistake: what plants it, and the batches in which it can happen."""

FAMILIES: Mapping[str, Callable[[Maker, int], Batch]] = {
    "refunds": refunds,
    "plan_credits": plan_credits,
    "payouts": payouts,
    "card_refunds": card_refunds,
    "emails": emails,
    "links": links,
    "webhooks": webhooks,
}


def clean(seed: int, count: int) -> list[Batch]:
    """Return batches without a mistake, the families in turns."""
    found: list[Batch] = []
    for number in range(count):
        maker = Maker(random.Random(f"clean {seed} {number}"))  # noqa: S311
        make = [*FAMILIES.values()][number % len(FAMILIES)]
        found.append(make(maker, maker.size()))
    return found


def spoilt(seed: int, count: int) -> list[Batch]:
    """Return batches with one mistake each, the kinds in turns."""
    found: list[Batch] = []
    number = 0
    while len(found) < count:
        kind = [*KINDS][len(found) % len(KINDS)]
        plant, families = KINDS[kind]
        maker = Maker(random.Random(f"{kind} {seed} {number}"))  # noqa: S311
        number += 1
        batch = FAMILIES[maker.rng.choice(families)](maker, maker.size())
        if _can_have(batch, kind) and (done := plant(maker, batch)).planted is not None:
            found.append(replace(done, mistake=kind))
    return found


def _can_have(batch: Batch, kind: str) -> bool:
    if kind == "1.9 times what was paid":
        return not {"paid", "invoice_total", "plan"}.isdisjoint(batch.rows[0])
    if kind == "misspelt domain":
        return not {"email", "to"}.isdisjoint(batch.rows[0])
    return kind != "unseen payee or host" or not batch.unseen


def as_card(batch: Batch) -> Approval:
    """Return the card of a batch, as the gateway would have evaluated its calls."""
    items = tuple(_item(batch, place) for place in range(len(batch.rows)))
    return Approval(
        id="ap_bench",
        tenant="bench",
        agent="support",
        thread="thread",
        message_id="message",
        channel="C0APPROVALS",
        expires_at_ms=1,
        ttl_ms=1,
        policy_digest="sha256:" + "0" * 64,
        items=items,
    )


def _item(batch: Batch, place: int) -> Item:
    ctx = Context(
        tenant="bench",
        agent="support",
        thread="thread",
        ns="",
        message_id="message",
        tool_call_id=f"call-{place}",
    )
    args = batch.rows[place]
    action = digest.action_document(
        tool=batch.family, args=args, ctx=ctx.as_dict(), salt=f"{place:032x}"
    )
    key = [str(args[name.removeprefix("args.")]) for name in batch.same_by]
    name = batch.seen_by.removeprefix("args.")
    in_card = sum(row.get(name) == args.get(name) for row in batch.rows) - 1
    earlier = 0 if place in batch.unseen else 1 + place % 7
    seen = WindowTotal(
        window="seen",
        by=batch.seen_by,
        others_micro=(earlier + in_card) * MICRO,
        within_ms=WINDOW_MS,
        is_count=True,
    )
    return Item(
        id=f"ap_bench.{place}",
        index=place,
        ctx=ctx,
        tool=batch.family,
        tier=Tier.APPROVE,
        allow=tuple(Verb),
        requirement=Requirement(
            approvals=1, of=(Role(name="support", users=("U0ANA",)),)
        ),
        requested=action,
        action=action,
        totals=batch.totals,
        formats=batch.totals,
        effect=digest.tagged_hash("bench", "|".join(key).encode()),
        past=Past(same_by=batch.same_by, totals=(seen,) if batch.seen_by else ()),
    )
