"""Canned blocks of every kind the page draws, and forms with every input."""

from typing import Any

from tests.sandbox.blockkit.charts import CHARTS
from tests.sandbox.page.fake_slack import Json
from tests.sandbox.page.scenes import (
    BOT,
    button,
    input_block,
    mrkdwn,
    option,
    plain,
    view,
)

MOMENT = 1_767_225_600  # 2026-01-01 00:00 UTC

STYLED = [
    {"type": "text", "text": "bold", "style": {"bold": True}},
    {"type": "text", "text": " "},
    {"type": "text", "text": "italic", "style": {"italic": True}},
    {"type": "text", "text": " "},
    {"type": "text", "text": "gone", "style": {"strike": True}},
    {"type": "text", "text": " "},
    {"type": "text", "text": "code", "style": {"code": True}},
    {"type": "text", "text": " "},
    {"type": "emoji", "name": "key", "unicode": "1f511"},
    {"type": "link", "url": "https://example.com/a", "text": "a label"},
    {"type": "user", "user_id": "U0BEN"},
    {"type": "usergroup", "usergroup_id": "S0SUPPORT"},
    {"type": "channel", "channel_id": "C0GENERAL"},
    {"type": "broadcast", "range": "here"},
    {"type": "date", "timestamp": MOMENT, "format": "{date_num}", "fallback": "then"},
    {"type": "color", "value": "#3d4db7"},
]


def rich_text() -> Json:
    """Return a rich_text block with every part and every inline element."""

    def words(text: str) -> list[Json]:
        return [{"type": "text", "text": text}]

    def items(*texts: str) -> list[Json]:
        return [{"type": "rich_text_section", "elements": words(t)} for t in texts]

    return {
        "type": "rich_text",
        "block_id": "rich",
        "elements": [
            {"type": "rich_text_section", "elements": STYLED},
            {"type": "rich_text_list", "style": "bullet", "elements": items("a", "b")},
            {
                "type": "rich_text_list",
                "style": "ordered",
                "offset": 2,
                "indent": 1,
                "elements": items("third", "fourth"),
            },
            {"type": "rich_text_quote", "elements": words("as somebody said")},
            {"type": "rich_text_preformatted", "elements": words("x = *1*\n  y")},
        ],
    }


def table() -> Json:
    """Return a table with aligned raw cells and one rich cell."""
    empty: Json = {"type": "rich_text_section", "elements": []}
    rich = {**rich_text(), "elements": [empty]}
    return {
        "type": "table",
        "block_id": "table",
        "column_settings": [{"align": "left"}, {"align": "right"}],
        "rows": [
            [{"type": "raw_text", "text": "name"}, {"type": "raw_text", "text": "n"}],
            [{"type": "raw_text", "text": "*raw*"}, {"type": "raw_number", "value": 7}],
            [rich, {"type": "raw_text", "text": "-"}],
        ],
    }


def section(block_id: str, text: Json, **more: Any) -> Json:
    """Return a section."""
    return {"type": "section", "block_id": block_id, "text": text, **more}


def every_block() -> list[Json]:
    """Return one of every block that a message may contain."""
    choices = [option("Refunds", "r"), option("E-mails", "e", "also replies")]
    return [
        {"type": "header", "block_id": "header", "text": plain("A header :key:")},
        section("plain", plain("*not bold* :key:", emoji=False)),
        section("plain-emoji", plain("open :unlock:", emoji=True)),
        section("mrkdwn", mrkdwn("*bold* and <@U0BEN>"), accessory=button("Go", "go")),
        {
            "type": "section",
            "block_id": "fields",
            "fields": [mrkdwn("*Tier*\nescalate"), plain("*Rule*\nover 500")],
        },
        {
            "type": "context",
            "block_id": "context",
            "elements": [
                {
                    "type": "image",
                    "image_url": "https://x.test/a.png",
                    "alt_text": "face",
                },
                mrkdwn("small _print_"),
            ],
        },
        {"type": "divider", "block_id": "divider"},
        rich_text(),
        {
            "type": "image",
            "block_id": "image",
            "image_url": "https://x.test/chart.png",
            "alt_text": "a chart of refunds",
            "title": plain("Refunds"),
        },
        table(),
        *({**block, "block_id": kind} for kind, block in CHARTS.items()),
        {
            "type": "actions",
            "block_id": "actions",
            "elements": [
                button("Open", "open", url="https://example.com/audit"),
                {
                    "type": "static_select",
                    "action_id": "filter",
                    "placeholder": plain("Filter"),
                    "options": choices,
                },
                {
                    "type": "overflow",
                    "action_id": "more",
                    "options": [option("Freeze", "freeze"), option("Show", "show")],
                },
            ],
        },
        {"type": "hologram", "block_id": "unknown"},
    ]


def every_input() -> list[Json]:
    """Return an input block of every kind, each with a value it starts with."""
    colours = [
        option("Red", "red"),
        option("Green", "green", "go"),
        option("Blue", "b"),
    ]
    return [
        input_block("line", "Line", "plain_text_input", initial_value="one"),
        input_block(
            "long", "Long", "plain_text_input", multiline=True, initial_value="a\nb"
        ),
        input_block(
            "number",
            "Amount",
            "number_input",
            is_decimal_allowed=True,
            initial_value="899.00",
        ),
        input_block("email", "E-mail", "email_text_input", initial_value="a@b.test"),
        input_block("url", "Address", "url_text_input", initial_value="https://b.test"),
        input_block(
            "select",
            "Colour",
            "static_select",
            options=colours,
            initial_option=colours[1],
        ),
        input_block(
            "multi",
            "Colours",
            "multi_static_select",
            options=colours,
            initial_options=colours[:1],
        ),
        input_block("user", "Person", "users_select", initial_user="U0BEN"),
        input_block("users", "People", "multi_users_select", initial_users=["U0ANA"]),
        input_block(
            "boxes",
            "Boxes",
            "checkboxes",
            options=colours,
            initial_options=colours[2:],
        ),
        input_block(
            "radio",
            "Radio",
            "radio_buttons",
            options=colours,
            initial_option=colours[0],
        ),
        input_block("date", "Date", "datepicker", initial_date="2026-01-02"),
        input_block("time", "Time", "timepicker", initial_time="09:30"),
        input_block(
            "moment", "Moment", "datetimepicker", initial_date_time=MOMENT + 61
        ),
        input_block("empty", "Empty", "plain_text_input", optional=True),
    ]


def edit_modal(**more: Any) -> Json:
    """Return the form in which a refund is edited."""
    reasons = [option("Damaged", "damaged"), option("Late", "late")]
    warning = "Over 500 two people have to agree."
    blocks: list[Json] = [
        {
            "type": "alert",
            "block_id": "tier",
            "level": "warning",
            "text": plain(warning),
        },
        input_block(
            "amount",
            "amount",
            "number_input",
            is_decimal_allowed=True,
            min_value="0.01",
            initial_value="899.00",
            focus_on_load=True,
            hint="At most what the customer paid: 899.00",
        ),
        input_block(
            "kind", "reason_code", "static_select", options=reasons, optional=True
        ),
        input_block(
            "note",
            "note",
            "plain_text_input",
            multiline=True,
            min_length=4,
            max_length=60,
            placeholder=plain("Why did you change it?"),
        ),
    ]
    return view("V0EDIT", blocks, **more)


def home_view() -> Json:
    """Return App Home with a queue."""
    return view(
        "V0HOME",
        [
            {"type": "header", "block_id": "h", "text": plain("2 calls wait for you")},
            section(
                "first",
                plain("process_refund · order 78291 · 899.00 GBP"),
                accessory=button("Open", "open_approval"),
            ),
            {"type": "divider", "block_id": "d"},
            section(
                "second",
                plain("send_email · cus_4Q7"),
                accessory=button("Open", "open_second"),
            ),
        ],
        type="home",
        title=None,
        submit=None,
        user=BOT,
    )
