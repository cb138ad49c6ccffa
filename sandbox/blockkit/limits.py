"""Slack's limits as constants, each with its source.

By default a number counts Unicode characters and comes from the page of its block or
element under https://docs.slack.dev/reference/block-kit/; slack_sdk's models agree
where they check it.
"""

# Limits of one payload: …/block-kit/blocks
BLOCKS_IN_MESSAGE = 50
BLOCKS_IN_VIEW = 100
TABLES_IN_MESSAGE = 1  # …/blocks/table-block
CHARTS_IN_MESSAGE = 2  # `charts.py` lists the sources for charts
MARKDOWN_IN_MESSAGE = 12_000  # over all markdown blocks: …/blocks/markdown-block

# The top-level text of a message: …/reference/methods/chat.postMessage, chat.update.
# Slack truncates a longer post silently; here it is refused.
TEXT_IN_POST = 40_000
TEXT_BYTES_IN_UPDATE = 4_000  # UTF-8, counted after & < > are escaped

# Slack answers `msg_blocks_too_long` by an unwritten rule; refusals were seen from
# 11,341 characters on (slackapi/bolt-js issues 2509 and 2867).
TEXT_IN_ALL_BLOCKS = 11_340

# Views: …/reference/views and …/reference/methods/views.open
VIEW_BYTES = 250_000
VIEW_LABEL = 24  # title, submit and close, each
PRIVATE_METADATA = 3_000

# Ids: …/block-kit/block-elements
ID = 255  # action_id, block_id, callback_id, external_id

# Blocks: …/block-kit/blocks/…
TEXT = 3_000  # a text object without a smaller limit
HEADER = 150
HEADER_LEVELS = 4
FIELDS = 10
FIELD = 2_000
CONTEXT_ELEMENTS = 10
ACTIONS_ELEMENTS = 25
IMAGE_ALT = 2_000
IMAGE_TITLE = 2_000
INPUT_LABEL = 2_000
INPUT_HINT = 2_000
TABLE_ROWS = 100
TABLE_COLUMNS = 20
ALERT = 200
CHART_TITLE = 50
CHART_SERIES = 12  # and segments of a pie
CHART_POINTS = 20  # of a series, and categories
CHART_LABEL = 20  # a point, a segment, a category and the name of a series, each
AXIS_TITLE = 50

# Elements: …/block-kit/block-elements/…
BUTTON = 75
BUTTON_VALUE = 2_000
URL = 3_000
PLACEHOLDER = 150
TYPED = 3_000  # the longest text a plain_text_input can take
TRIGGER_ACTIONS = 2
EPOCH_SECONDS = (1_000_000_000, 9_999_999_999)  # "10 digits": datetime-picker-element

# Choices: …/block-kit/composition-objects/option-object, option-group-object
SELECT_OPTIONS = 100
OPTION_GROUPS = 100
OVERFLOW_OPTIONS = 5
CHOICES = 10  # checkboxes, radio_buttons
OPTION = 75
OPTION_VALUE = 150

# Confirm: …/block-kit/composition-objects/confirmation-dialog-object
CONFIRM_TITLE = 100
CONFIRM_TEXT = 300
CONFIRM_BUTTON = 30
