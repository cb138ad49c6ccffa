"""Script of the demo for a question: the agent asks, and its requester answers."""

from __future__ import annotations

from twokey.bot.ids import Action
from twokey.cli.demo_context import STEP_TIMEOUT_S, DemoContext, expect
from twokey.cli.demo_stack import REQUESTER
from twokey.gateway.protocol.states import ItemState

STREET, PLACE, COUNTRY = "12 Mill Lane", "CB1 2AB Cambridge", "GB"


async def question(context: DemoContext) -> None:
    """The agent asks four things at once, and then for approval of what it makes."""
    ts, asked = await context.ask("@twokey move order 78304")
    expect(asked.is_question, "The agent did not ask.")
    await context.click(ts, Action.ANSWER, asked, 0, by=REQUESTER)
    form = await context.dan.wait_for_view(timeout_s=STEP_TIMEOUT_S)
    expect(len(asked.items[0].questions) == 4, "Not all was asked at once.")  # noqa: PLR2004 - street, town, country, how to tell
    expect("Which country" in str(form), "The form does not show the questions.")

    values: dict[str, object] = {"question.0": STREET, "question.1": PLACE}
    # The box "Other" without its text: Slack lets it pass, so the bot has to refuse it.
    errors = await context.dan.submit({**values, "question.2": "other"})
    expect(errors, "An empty Other was accepted.")
    values |= {"question.2": "2", "question.3": ["0", "1"]}
    expect(not await context.dan.submit(values), "The answers were refused.")
    after = await context.reached(asked, {0: ItemState.ANSWERED})
    decision = after.items[0].decision
    expect(decision, "The answers are not kept.")
    answers = decision.answers if decision else ()
    context.say(
        "question.answered", approval=asked.id, by=REQUESTER, answers=[*answers]
    )
    expect(
        answers == (STREET, PLACE, COUNTRY, "E-mail, Text message"),
        f"The answers are {answers}.",
    )

    ts, approval = await context.card_after(ts)
    args = approval.items[0].args
    expect(args["street"] == STREET and args["country"] == COUNTRY, "Not as answered.")
    await context.click(ts, Action.APPROVE, approval, 0)
    await context.reached(approval, {0: ItemState.EXECUTED})
    words = await context.final_message()
    expect(STREET in words and "Cambridge" in words, "The agent does not say where.")
