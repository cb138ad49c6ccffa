"""List ways to break who is asked, and how; see `tests.mutants.table`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COPIES = "tests/bot/test_personal_copies.py"
ASKING = "tests/bot/cards/test_asking.py"

REACH_TABLE = (
    Mutant(
        "a card is not moved by what a click says alone",
        "bot/listeners/usable_copy.py",
        "if not await is_there(ctx, action.channel, action.message_ts):",
        "if not await is_there(ctx, was.channel, was.ts):",
        "tests/attacks/test_odd_payloads.py",
    ),
    Mutant(
        "a card is not moved where Slack does not say that it is there",
        "bot/listeners/usable_copy.py",
        "        raise UserFacingError(template(_NOT_LOOKED_FOR)) from None\n",
        "",
        "tests/bot/test_one_usable_card.py",
    ),
    Mutant(
        "a copy whose posting got no answer is no second usable one",
        "bot/listeners/usable_copy.py",
        "return (copy.channel, copy.ts) == (action.channel, action.message_ts)",
        "return True",
        COPIES,
    ),
    Mutant(
        "a copy whose answer was lost is found and not posted again",
        "bot/delivery/card_copies.py",
        "            if user in lost:\n",
        "            if False:\n",
        COPIES,
    ),
    Mutant(
        "a copy whose answer was lost becomes true after the decision",
        "bot/delivery/card_copies.py",
        "        for user in lost:\n",
        "        for user in ():\n",
        COPIES,
    ),
    Mutant(
        "a decision on one copy is shown on all",
        "bot/delivery/card_copies.py",
        "for user in place.sent:",
        "for user in ():",
        COPIES,
    ),
    Mutant(
        "a click on a copy never makes it the card",
        "bot/listeners/usable_copy.py",
        "if copy is not None and copy.channel == action.channel:",
        "if place is not None and copy is not None and copy.channel == action.channel:",
        COPIES,
    ),
    Mutant(
        "a copy shows an edit while another call runs",
        "bot/delivery/card_copies.py",
        "is_settled = needs_people(record) or is_over(record)",
        "is_settled = is_over(record)",
        COPIES,
    ),
    Mutant(
        "copies show a decision that the card cannot show",
        "bot/delivery/card_updater.py",
        "is_first = needed is not None and not entry.refusals",
        "is_first = needed is not None",
        COPIES,
    ),
    Mutant(
        "a copy that cannot change any more says so",
        "bot/delivery/card_copies.py",
        "            if copy.ts:\n                note =",
        "            if False:\n                note =",
        COPIES,
    ),
    Mutant(
        "a copy that cannot change any more takes no click",
        "bot/listeners/usable_copy.py",
        "    if copy.refused:\n        return False\n",
        "",
        COPIES,
    ),
    Mutant(
        "a new copy is not announced under itself",
        "bot/delivery/card_updater.py",
        "for u, at in entry.copies.items() if u not in entry.just_sent}",
        "for u, at in entry.copies.items()}",
        COPIES,
    ),
    Mutant(
        "of those with a copy only who is called is told of an escalation",
        "bot/delivery/event_messages.py",
        "whom = copies_called(approval) if is_call else copies_for(approval)",
        "whom = copies_for(approval)",
        ASKING,
    ),
    Mutant(
        "who is called in their quiet hours is asked when these end",
        "bot/delivery/event_messages.py",
        "roles |= frozenset(escalation_mentions(approval).roles)",
        "roles |= {role.name for role in approval.waiting.roles}",
        ASKING,
    ),
    Mutant(
        "quiet hours that end twice in autumn end twice",
        "gateway/policy/quiet_hours.py",
        "for after in (hours.EARLIEST, hours.LATEST)",
        "for after in (hours.EARLIEST,)",
        "tests/policy/test_quiet_hours.py",
    ),
    Mutant(
        "who said 'I'm on it' is not reminded under their copy",
        "bot/delivery/event_messages.py",
        "if user in copies and user != spared",
        "if user in copies",
        COPIES,
    ),
    Mutant(
        "who said 'I'm on it' is not mentioned by a reminder",
        "bot/cards/mentions.py",
        "people = (one for one in asking.users if one != spared)",
        "people = asking.users",
        ASKING,
    ),
    Mutant(
        "nobody is mentioned who gets a copy",
        "bot/cards/mentions.py",
        "users = tuple(one for one in asking.users if one not in copied)",
        "users = asking.users",
        ASKING,
    ),
    Mutant(
        "in quiet hours nobody is mentioned",
        "bot/cards/mentions.py",
        "if role.notify is Notify.NONE or _is_quiet(role):",
        "if role.notify is Notify.NONE:",
        ASKING,
    ),
    Mutant(
        "who is on call is asked alone only while that is enough",
        "bot/cards/mentions.py",
        "needed += next(enough, roles)",
        "needed += fewest[0]",
        ASKING,
    ),
    Mutant(
        "an urgent call is asked about in quiet hours",
        "gateway/policy/quiet_hours.py",
        "is_urgent = end is not None and expires <= end and rule.is_urgent(tier)",
        "is_urgent = False",
        "tests/policy/test_quiet_hours.py",
    ),
    Mutant(
        "turns on call follow the local clock",
        "gateway/policy/on_call.py",
        "while rule.begin(turn + 1) <= now:",
        "while False:",
        "tests/policy/test_on_call.py",
    ),
    Mutant(
        "membership is asked about afresh where two are needed",
        "bot/listener_context.py",
        "fresh = decides and any(",
        "fresh = False and any(",
        "tests/matrix",
    ),
)
