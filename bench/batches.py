"""Make batches of calls as shops send them, and plant one mistake in some of them.

Everything is drawn from a seed. The batches have what honest batches have: customers
who come again, popular amounts, amounts with a long tail, names that resemble each
other, new payees, missing values. A mistake is one that people and models make. This
module knows nothing of the marks, so that it cannot fit them.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from keyturn.gateway.protocol.strict_json import JsonObject

_FIRST = (  # noqa: SIM905
    "Ana Ben Carla David Elif Farid Greta Hugo Inga Jonas Kim Lea Marco Nadia "
    "Olaf Petra Quentin Rosa Sven Tariq Ute Vera Walter Xenia Yusuf Zoe "
    "Łukasz Søren José Zoë"
).split()
_LAST = (  # noqa: SIM905
    "Meier Meyer Maier Schmidt Schmitt Schulz Fischer Weber Wagner Becker "
    "Hoffmann Hofmann Koch Richter Klein Wolf Neumann Braun Zimmermann Krüger "
    "Hartmann Lange Rossi Russo Ferrari Esposito García Lopez Martin Bernard "
    "Dubois Novák Kowalski Jansen Janssen Andersen Nilsson Öztürk Yilmaz "
    "Demir Nguyen Singh Patel Иванова"
).split()
_FIRMS = (  # noqa: SIM905
    "Northwind Fabrikam Contoso Lakeside Brightside Hilltop Ironworks Redwood "
    "Silverline Bluebird Greenfield Oakland Westport Eastgate Sunrise "
    "Starlight Blackwater Kingsley Harbour Meridian Summit Pioneer Atlas "
    "Vertex Orion Polaris Quantum Evergreen"
).split()
_TRADES = (  # noqa: SIM905
    "Logistics Papers Foods Textiles Metals Printing Media Packaging Labs"
).split()
_FORMS = ("Ltd", "GmbH", "SA", "Inc", "BV", "SpA")
_MAIL = {
    "gmail.com": 40, "gmx.de": 12, "web.de": 10, "outlook.com": 9, "hotmail.com": 7,
    "yahoo.com": 6, "icloud.com": 6, "t-online.de": 4, "gmx.net": 3, "orange.fr": 3,
    "libero.it": 3, "proton.me": 2, "mail.com": 1, "yahoo.de": 1,
}  # fmt: skip
_REASONS = (
    ("damaged on arrival", 60, 0.7),
    ("late delivery", 6, 0.25),
    ("wrong size", 45, 0.5),
    ("cancelled", 80, 0.8),
    ("goodwill", 10, 0.4),
    ("lost parcel", 70, 0.6),
)
_NOTES = (
    "",
    "Customer {name} wrote twice.",
    "Photo received for {order}.",
    "ok",
    "see ticket",
)
_HOSTS = ("shop.example", "status.example", "docs.example", "help.shop.example")
_IBAN_FORMS = {"DE": 18, "NL": 14, "FR": 23, "ES": 20, "AT": 16, "BE": 12, "IT": 23}
WINDOW_MS = 90 * 24 * 3_600_000


@dataclass(frozen=True)
class Batch:
    """Calls of one tool, before they are a card.

    Attributes:
        family: what the calls do.
        rows: the arguments of each call.
        totals: as in a policy.
        same_by: as in a policy.
        seen_by: argument with a window in the policy; "" for none.
        unseen: calls whose value of this argument has no earlier call.
        mistake: the kind of the planted mistake; "" for none.
        planted: the call that has it; None for none.
    """

    family: str
    rows: tuple[JsonObject, ...]
    totals: tuple[str, ...] = ()
    same_by: tuple[str, ...] = ()
    seen_by: str = ""
    unseen: frozenset[int] = frozenset()
    mistake: str = ""
    planted: int | None = None

    def changed(self, place: int, **values: object) -> Batch:
        """Return a copy in which one call has these arguments."""
        rows: list[JsonObject] = [{**row} for row in self.rows]
        rows[place].update(values)  # type: ignore[arg-type]
        return replace(self, rows=tuple(rows))


@dataclass
class Maker:
    """The random source of one batch, and the people it has drawn."""

    rng: random.Random
    used: set[str] = field(default_factory=set[str])

    def size(self) -> int:
        """Return a number of calls: as many small batches as large ones."""
        return self.rng.choice([self.rng.randint(7, 20), self.rng.randint(21, 99)])

    def person(self) -> tuple[str, str]:
        """Return a name and an e-mail address."""
        rng = self.rng
        first, last = rng.choice(_FIRST), rng.choice(_LAST)
        domain = rng.choices([*_MAIL], [*_MAIL.values()])[0]
        if rng.random() < 0.15:
            firm, trade = rng.choice(_FIRMS), rng.choice(_TRADES)
            domain = f"{firm}-{trade}.{rng.choice(['com', 'de', 'eu'])}".lower()
        local = (
            f"{_ascii(first)}.{_ascii(last)}{rng.choice(['', '', rng.randint(1, 99)])}"
        )
        return f"{first} {last}", f"{local}@{domain}".lower()

    def firm(self) -> str:
        """Return the name of a firm; no two have the same without their legal form."""
        while True:
            name = f"{self.rng.choice(_FIRMS)} {self.rng.choice(_TRADES)}"
            if name not in self.used:
                self.used.add(name)
                return f"{name} {self.rng.choice(_FORMS)}"

    def iban(self) -> str:
        """Return an IBAN with the right check digits."""
        rng = self.rng
        country = rng.choice([*_IBAN_FORMS])
        rest = "".join(rng.choice(string.digits) for _ in range(_IBAN_FORMS[country]))
        number = int("".join(str(int(one, 36)) for one in f"{rest}{country}00"))
        return f"{country}{98 - number % 97:02d}{rest}"

    def card(self) -> str:
        """Return a card number with the right check digit."""
        body = self.rng.choice("45") + "".join(self.rng.choices(string.digits, k=14))
        return body + _last_digit(body)

    def ids(self, prefix: str, count: int) -> list[str]:
        """Return ids that rise with gaps, as of orders of one day."""
        at = self.rng.randint(10_000, 900_000)
        found: list[str] = []
        for _ in range(count):
            at += 1 + int(self.rng.expovariate(1 / 12))
            found.append(f"{prefix}{at}")
        self.rng.shuffle(found)
        return found

    def amount(self, middle: float, spread: float) -> float:
        """Return an amount with a long tail, often just below a round one."""
        rng = self.rng
        value = rng.lognormvariate(math.log(middle), spread)
        if rng.random() < 0.04:
            value *= rng.paretovariate(1.6)
        if rng.random() < 0.6:
            value = max(1, round(value)) - rng.choice([0.01, 0.05, 0.1])
        return round(max(value, 0.5), 2)

    def drawn(self, count: int, people: Sequence[object]) -> list[int]:
        """Return who comes in each call: some of them again and again."""
        is_loyal = self.rng.random() < 0.6
        weights = [1 / (place + 1) ** 0.7 for place in range(len(people))]
        if is_loyal:
            return self.rng.choices(range(len(people)), weights, k=count)
        return self.rng.sample(range(len(people)), count)


def _ascii(text: str) -> str:
    return text.encode("ascii", "ignore").decode() or "kunde"


def _last_digit(body: str) -> str:
    digits = [int(one) for one in reversed(body)]
    total = sum(
        sum(divmod(2 * d, 10)) if n % 2 == 0 else d for n, d in enumerate(digits)
    )
    return str(-total % 10)


def refunds(maker: Maker, count: int) -> Batch:
    """Refunds of orders; of one cause or of several, some with the paid sum."""
    rng = maker.rng
    people = [
        (f"C{rng.randint(1000, 99999)}", *maker.person()) for _ in range(2 * count)
    ]
    causes = rng.sample(_REASONS, rng.choice([1, 3, 4, 6]))
    has_paid, has_name = rng.random() < 0.5, rng.random() < 0.5
    has_items, has_note = rng.random() < 0.3, rng.random() < 0.3
    currencies = ["EUR"] if rng.random() < 0.8 else ["EUR", "EUR", "EUR", "GBP", "USD"]
    rows: list[JsonObject] = []
    for order, who in zip(
        maker.ids("", count), maker.drawn(count, people), strict=True
    ):
        cause, middle, spread = rng.choice(causes)
        customer, name, mail = people[who]
        amount = maker.amount(middle, spread)
        row: JsonObject = {"order_id": order, "customer_id": customer, "amount": amount}
        row |= {"customer": name} if has_name else {"email": mail}
        row["reason"] = cause
        if has_paid:
            part = 1.0 if rng.random() < 0.6 else rng.uniform(0.1, 0.9)
            row["paid"] = round(amount / part, 2)
        if has_items:
            row |= {"items": rng.choices([1, 2, 3, 12], [70, 20, 8, 2])[0]}
        if has_note:
            row["note"] = rng.choice(_NOTES).format(name=name, order=order)
        if "email" in row and rng.random() < 0.05:
            row["email"] = rng.choice([mail.upper(), ""])
        row["currency"] = rng.choice(currencies)
        rows.append(row)
    return Batch("refunds", tuple(rows), ("args.amount|eur",), ("args.order_id",))


def plan_credits(maker: Maker, count: int) -> Batch:
    """Credits after an outage: a fixed sum for each plan."""
    rng = maker.rng
    plans = {"basic": 4.99, "family": 9.99, "business": 49.0, "enterprise": 249.0}
    rows: list[JsonObject] = []
    for account in maker.ids("acc_", count):
        plan = rng.choices([*plans], [60, 25, 12, 3])[0]
        months = rng.choices([1, 2, 3], [90, 7, 3])[0]
        rows.append(
            {
                "account": account,
                "email": maker.person()[1],
                "plan": plan,
                "amount": round(plans[plan] * months, 2),
                "currency": "EUR",
            }
        )
    return Batch("credits", tuple(rows), ("args.amount|eur",), ("args.account",))


def payouts(maker: Maker, count: int) -> Batch:
    """Payments of invoices to suppliers, most of them known."""
    rng = maker.rng
    firms = [(maker.firm(), maker.iban()) for _ in range(2 * count)]
    has_invoice = rng.random() < 0.5
    who = maker.drawn(count, firms)
    rows: list[JsonObject] = []
    for number, firm in zip(maker.ids("RE-", count), who, strict=True):
        name, iban = firms[firm]
        amount = maker.amount(900, 1.0)
        row: JsonObject = {"invoice": number, "payee": name, "iban": iban}
        row |= {"amount": amount, "due": f"2026-12-{rng.randint(1, 28):02d}"}
        if has_invoice:
            is_cut = rng.random() < 0.15
            row["invoice_total"] = round(amount / 0.98, 2) if is_cut else amount
        rows.append(row)
    share = rng.choice([0, 0, 0, 0.05, 0.2])
    new = {firm for firm in {*who} if rng.random() < share}
    return Batch(
        "payouts",
        tuple(rows),
        ("args.amount|eur",),
        ("args.invoice",),
        "args.iban",
        frozenset(place for place, firm in enumerate(who) if firm in new),
    )


def card_refunds(maker: Maker, count: int) -> Batch:
    """Refunds to cards."""
    rows: list[JsonObject] = [
        {"payment": payment, "card": maker.card(), "amount": maker.amount(40, 0.9)}
        for payment in maker.ids("pi_", count)
    ]
    return Batch("card refunds", tuple(rows), ("args.amount|eur",), ("args.payment",))


def emails(maker: Maker, count: int) -> Batch:
    """Messages to customers, from a few templates."""
    rng = maker.rng
    subjects = (
        "Your order is late",
        "We have refunded you",
        "Please confirm your address",
    )
    rows: list[JsonObject] = []
    for order in maker.ids("", count):
        name, mail = maker.person()
        subject = rng.choice(subjects)
        body = f"Dear {name}, about your order {order}: {subject.lower()}."
        rows.append({"to": mail, "subject": subject, "body": body, "order_id": order})
    return Batch("e-mails", tuple(rows), (), ("args.order_id",))


def links(maker: Maker, count: int) -> Batch:
    """Replies to tickets, each with a link to a page of the shop."""
    rng = maker.rng
    hosts = rng.sample(_HOSTS, rng.choice([1, 2, 4]))
    pages = ("returns", "delivery", "sizes", "invoice", "warranty", "account")
    rows: list[JsonObject] = [
        {
            "ticket": ticket,
            "url": f"https://{rng.choice(hosts)}/{rng.choice(pages)}?t={ticket[2:]}",
            "customer": maker.person()[0],
        }
        for ticket in maker.ids("T-", count)
    ]
    return Batch("links", tuple(rows), (), ("args.ticket",))


def webhooks(maker: Maker, count: int) -> Batch:
    """Addresses of partners to which events go, most of them known."""
    rng = maker.rng
    rows: list[JsonObject] = []
    for partner in maker.ids("p_", count):
        firm = maker.firm()
        host = f"hooks.{firm.rsplit(' ', 1)[0].replace(' ', '-').lower()}.example"
        rows.append(
            {
                "partner": partner,
                "name": firm,
                "host": host,
                "url": f"https://{host}/in",
            }
        )
    share = rng.choice([0, 0, 0, 0.05, 0.2])
    new = frozenset(place for place in range(count) if rng.random() < share)
    return Batch("webhooks", tuple(rows), (), ("args.partner",), "args.host", new)
