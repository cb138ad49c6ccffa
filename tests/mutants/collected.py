"""List ways to break cards that calls of several requests share."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COLLECTED = "tests/bot/test_collected_cards.py"
FAULTS = "tests/bot/test_collected_cards_faults.py"
LIMITS = "tests/bot/test_collected_cards_limits.py"

COLLECTED_TABLE = (
    Mutant(
        "a collected card rises when a member leaves it",
        "gateway/approvals/collected.py",
        "rev=sum(one.rev for one in members) + left * _LEFT,",
        "rev=sum(one.rev for one in members),",
        COLLECTED,
    ),
    Mutant(
        "a member that left a card is decided over it no more",
        "gateway/store/cards.py",
        "if where == [card.encode(), None]",
        "if where",
        COLLECTED,
    ),
    Mutant(
        "a call that needs more people leaves the card that it shares",
        "bot/delivery/collecting.py",
        "return can_share(approval) and await self._is_alike(approval, card)",
        "return True",
        COLLECTED,
    ),
    Mutant(
        "a call that is alone has a card of its own",
        "bot/delivery/collecting.py",
        "if len(members) < 2:",
        "if not members:",
        COLLECTED,
    ),
    Mutant(
        "a button about one call of a collected card is about its approval",
        "bot/listeners/targets.py",
        "    return await of_member(ctx, target)\n\n\nasync def verify_place",
        "    return target\n\n\nasync def verify_place",
        COLLECTED,
    ),
    Mutant(
        "members of a card are reminded of once",
        "bot/delivery/collecting.py",
        "                event.name in _ONCE\n",
        "                False\n",
        COLLECTED,
    ),
    Mutant(
        "calls of other tasks do not share a card",
        "bot/delivery/collecting.py",
        "                approval.task,\n",
        "",
        COLLECTED,
    ),
    Mutant(
        "calls of other requesters do not share a card",
        "bot/delivery/collecting.py",
        '                approval.requester.user if approval.requester else "",\n',
        "",
        COLLECTED,
    ),
    Mutant(
        "a card of its own is not shared from then on",
        "gateway/store/cards.py",
        "if own is not None:",
        "if False:",
        FAULTS,
    ),
    Mutant(
        "a call that a shared card has no place for waits for the next",
        "bot/delivery/collecting.py",
        "return bool(shared) and approval.id not in shared",
        "return False",
        FAULTS,
    ),
    Mutant(
        "the last call on a shared card has its buttons",
        "gateway/approvals/record.py",
        "len(self.items) > 1 or first.id",
        "len(self.items) > 1 or self.id != self.id and first.id",
        FAULTS,
    ),
    Mutant(
        "a shared card without calls says so",
        "bot/delivery/collecting.py",
        "                await self._say_that_all_left(card)\n",
        "                pass\n",
        FAULTS,
    ),
    Mutant(
        "a corrupt record does not keep people from the others of its card",
        "gateway/service/reviews.py",
        "                loaded = None\n",
        "                raise\n",
        FAULTS,
    ),
    Mutant(
        "a choice of calls that moved is not taken for others",
        "bot/modals/choose.py",
        "reject=tuple(index for index in self.reject if index in kept),",
        "reject=self.reject,",
        "tests/bot/modals/test_choose.py",
    ),
    Mutant(
        "a choice of calls that moved up is not taken for others",
        "bot/modals/choose.py",
        "approve=tuple(index for index in self.approve if index in kept),",
        "approve=self.approve,",
        FAULTS,
    ),
    Mutant(
        "a card holds no more calls than it shows whole",
        "bot/delivery/collecting.py",
        "while len(members) > 1 and decided_alone(",
        "while False and decided_alone(",
        LIMITS,
    ),
    Mutant(
        "a call that a row does not show whole has a card of its own",
        "bot/delivery/collecting.py",
        "return not decided_alone(collected(_ANY, [approval]))",
        "return True",
        LIMITS,
    ),
    Mutant(
        "a call that was given more time is reminded of again",
        "bot/delivery/collecting.py",
        "                and not was_extended(approval)\n",
        "",
        LIMITS,
    ),
    Mutant(
        "other reviewers for all calls keep their card",
        "bot/delivery/collecting.py",
        "        await self.store.regroup(keys, card, group)\n        return True\n",
        "        return False\n",
        LIMITS,
    ),
)
