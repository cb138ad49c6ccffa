"""Modals give Slack's state.values, show errors inline, and lose nothing typed."""

import pytest
from selenium.webdriver.common.keys import Keys

from keyturn.sandbox.elements import initial_values
from tests.sandbox.page.block_scenes import (
    edit_modal,
    every_input,
    home_view,
)
from tests.sandbox.page.fake_slack import FakeSlack, Json
from tests.sandbox.page.scenes import input_block, plain, view
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

SUBMIT = ".modal-submit"


def control(block_id: str) -> str:
    return f'.dialog [data-block-id="{block_id}"] .control'


def error(block_id: str) -> str:
    return f'.dialog [data-block-id="{block_id}"] .error'


def submitted(screen: Screen, slack: FakeSlack) -> Json:
    done = len(slack.did("view_submission"))
    screen.click(SUBMIT)
    screen.wait(lambda: len(slack.did("view_submission")) > done, "the form to be sent")
    return slack.did("view_submission")[-1]


@pytest.fixture
def form(screen: Screen, slack: FakeSlack) -> Screen:
    """Show a form with an input of every kind."""
    slack.show(views=[view("V1", every_input())])
    screen.open()
    screen.one(".dialog")
    return screen


@pytest.fixture
def edit(screen: Screen, slack: FakeSlack) -> Screen:
    """Show the form that edits a refund."""
    slack.show(views=[edit_modal()])
    screen.open()
    screen.one(".dialog")
    return screen


def test_an_untouched_form_keeps_its_values(form: Screen, slack: FakeSlack) -> None:
    act = submitted(form, slack)

    assert act["view_id"] == "V1"
    assert act["user"] == "U0ANA"
    assert act["values"] == initial_values(every_input())


def test_what_a_person_enters_has_slacks_shape(form: Screen, slack: FakeSlack) -> None:
    form.type(control("line"), "two")
    form.type(control("long"), "a")
    form.one(control("long")).send_keys(Keys.ENTER, "c")
    form.type(control("number"), "449.50")
    form.one(f"{control('select')} [data-value=red]").click()
    for value in ("red", "b"):
        form.click(f'[data-block-id="multi"] [data-value="{value}"]')
    form.one(f'{control("user")} [data-value="U0DAN"]').click()
    form.click('[data-block-id="users"] [data-value="U0CHLOE"]')
    for value in ("b", "green"):
        form.click(f'[data-block-id="boxes"] [data-value="{value}"]')
    form.click('[data-block-id="radio"] [data-value="green"]')
    form.run(
        "for (const [css, value] of Object.entries(arguments[0]))"
        " document.querySelector(css).value = value;",
        {
            control("date"): "2026-05-06",
            control("time"): "23:59",
            control("moment"): "",
        },
    )
    form.type(control("empty"), "now full")

    form.click(SUBMIT)
    assert form.one(error("moment")).text == "Please complete this required field."
    form.run(
        "document.querySelector(arguments[0]).value = '2026-05-06T10:00'",
        control("moment"),
    )
    values = submitted(form, slack)["values"]

    held = {block: list(each["value"].values())[1] for block, each in values.items()}
    colours = {one["value"]: one for one in every_input()[5]["element"]["options"]}
    moment = form.run("return new Date('2026-05-06T10:00').getTime() / 1000")
    assert held == {
        "line": "two",
        "long": "a\nc",
        "number": "449.50",
        "email": "a@b.test",
        "url": "https://b.test",
        "select": colours["red"],
        "multi": [colours["b"]],
        "user": "U0DAN",
        "users": ["U0ANA", "U0CHLOE"],
        "boxes": [colours["green"]],
        "radio": colours["green"],
        "date": "2026-05-06",
        "time": "23:59",
        "moment": moment,
        "empty": "now full",
    }


INVALID: dict[str, tuple[Json, str, str]] = {
    "required": (
        input_block("b", "x", "plain_text_input"),
        "",
        "Please complete this required field.",
    ),
    "long": (
        input_block("b", "x", "plain_text_input", max_length=3),
        "abcd",
        "Please enter at most 3 characters.",
    ),
    "no whole number": (
        input_block("b", "x", "number_input", is_decimal_allowed=False),
        "4.5",
        "Please enter a whole number.",
    ),
    "too big": (
        input_block("b", "x", "number_input", max_value="9"),
        "10",
        "Please enter a number of 9 or less.",
    ),
    "no e-mail": (
        input_block("b", "x", "email_text_input"),
        "ana",
        "Please enter an email address.",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_slack_would_not_send_is_said_beside_the_input(
    screen: Screen, slack: FakeSlack, case: str
) -> None:
    block, typed, objection = INVALID[case]
    slack.show(views=[view("V1", [block])])
    screen.open()

    screen.type(control("b"), typed)
    screen.click(SUBMIT)

    assert screen.one(error("b")).text == objection
    assert screen.one(control("b")).get_attribute("aria-invalid") == "true"
    assert screen.has_focus(control("b"))
    assert slack.acts == []


def test_an_error_goes_when_corrected(edit: Screen, slack: FakeSlack) -> None:
    edit.type(control("note"), "too much")
    slack.answers.append({"ok": True, "errors": {"amount": "At most 899.00."}})

    submitted(edit, slack)

    assert edit.one(error("amount")).text == "At most 899.00."
    assert edit.one(control("note")).get_attribute("value") == "too much"
    assert edit.has_focus(control("amount"))

    edit.focused().send_keys("1")

    edit.wait(lambda: not edit.all(".has-error"), "the error to go")


def test_an_updated_view_keeps_typed_inputs(edit: Screen, slack: FakeSlack) -> None:
    edit.type(control("note"), "typed")
    box = edit.one(control("note"))
    edit.run("arguments[0].setSelectionRange(1, 3)", box)
    updated = edit_modal(hash="V0EDIT.2", title=plain("Edit again"))
    updated["blocks"][1] = input_block(
        "amount-2", "amount", "plain_text_input", initial_value="from the app"
    )

    slack.show(views=[updated])
    edit.wait(lambda: edit.text(".dialog-title") == "Edit again", "the update")

    assert edit.one(control("note")).get_attribute("value") == "typed"
    assert edit.has_focus(control("note"))
    caret = "return [arguments[0].selectionStart, arguments[0].selectionEnd]"
    assert edit.run(caret, edit.one(control("note"))) == [1, 3]
    assert edit.one(control("amount-2")).get_attribute("value") == "from the app"


def test_the_focus_enters_and_leaves_a_form(screen: Screen, slack: FakeSlack) -> None:
    screen.open()
    screen.click('[data-action-id="edit"]')
    slack.show(views=[edit_modal()])

    screen.wait(lambda: screen.has_focus(control("amount")), "the first input")
    for _ in range(12):
        screen.press(Keys.TAB)
        inside = screen.run("return document.activeElement.closest('.dialog') !== null")
        assert inside
    screen.press(Keys.ESCAPE)
    slack.show(views=[])

    screen.gone(".dialog")
    assert screen.has_focus('[data-action-id="edit"]')
    assert slack.did("view_closed") == [
        {"user": "U0ANA", "type": "view_closed", "view_id": "V0EDIT"}
    ]


def test_a_pushed_view_keeps_the_one_below(edit: Screen, slack: FakeSlack) -> None:
    edit.type(control("note"), "kept below")
    pushed = view("V2", [input_block("why", "Why", "plain_text_input")])

    slack.show(views=[edit_modal(), pushed])
    edit.one('[data-view-id="V2"]')

    below = "document.querySelector('[data-view-id=V0EDIT]')"
    assert edit.run(f"return {below}.closest('[inert]') !== null")
    edit.one('[data-view-id="V2"] .modal-close').click()
    slack.show(views=[edit_modal()])
    edit.gone('[data-view-id="V2"]')
    assert edit.one(control("note")).get_attribute("value") == "kept below"


def test_app_home_is_opened_and_clicked(screen: Screen, slack: FakeSlack) -> None:
    screen.open()
    screen.click('#channels [data-channel="D0ANA"]')
    screen.click('[data-hook="tab-home"]')
    screen.wait(lambda: slack.did("home_opened"), "App Home to be opened")
    assert "has not published" in screen.one("#home").text

    slack.show(home=home_view())
    screen.click('#home [data-action-id="open_second"]')

    screen.wait(lambda: slack.did("block_actions"), "the click")
    act = slack.did("block_actions")[0]
    assert (act["view_id"], act["block_id"]) == ("V0HOME", "second")
    assert len(slack.did("home_opened")) == 1
