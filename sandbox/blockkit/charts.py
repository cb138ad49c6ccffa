"""Schema of the block `data_visualization`: a pie, bar, area or line chart.

Sources, read in November 2026:

- https://docs.slack.dev/reference/block-kit/blocks/data-visualization-block: the fields
  and their lengths; 1 to 20 points in a series; names of series are unique, and their
  labels are the categories of the axis; a pie has positive values, other charts accept
  negative ones. Values have no documented bounds.
- Messages only: https://github.com/slack-edge/slack-web-api-client/pull/57
- Two in a message, which Slack does not document but enforces:
  https://github.com/vercel/chat/pull/696 and
  https://github.com/openclaw/openclaw/pull/102635, both against a live workspace.
- Series and segments: 6 in the announcement of the block
  (https://docs.slack.dev/changelog/2026/06/16/block-kit-data-visualization-block and
  https://github.com/slackapi/node-slack-sdk/pull/2637), 12 in later sources
  (https://github.com/CopilotKit/CopilotKit/pull/6342,
  https://docs.rs/slack-morphism/2.30.0/slack_morphism/prelude/struct.SlackSeriesChart.html
  and https://docs.openclaw.ai/channels/slack/rich-messages). 6 satisfies both.
- A workspace without the block refuses the message with `invalid_blocks`: the same page
  of OpenClaw.
"""

from collections.abc import Mapping

from keyturn.sandbox.blockkit import limits
from keyturn.sandbox.blockkit.jsontypes import ReadOnlyJSON
from keyturn.sandbox.blockkit.objects import ID
from keyturn.sandbox.blockkit.problem import Violation, Violations
from keyturn.sandbox.blockkit.rules import items_of
from keyturn.sandbox.blockkit.shape import Many, Node, Number, Record, Rule, Str, Tagged

_LABEL = Str(limits.CHART_LABEL)
_AXIS_TITLE = Str(limits.AXIS_TITLE)
_SERIES = Record(
    {
        "name": _LABEL,
        "data": Many(Record({"label": _LABEL, "value": Number()}), limits.CHART_POINTS),
    }
)


def _unique(what: str, *path: str) -> Rule:
    """Refuse an item of a list that repeats an earlier one; `path` leads to it."""

    def rule(node: Node) -> Violations:
        *above, key = path
        for step in above:
            node = _object(node[step])
        seen: list[ReadOnlyJSON] = []
        for index, item in enumerate(items_of(node, key)):
            name = item["name"] if isinstance(item, Mapping) else item
            if name in seen:
                yield Violation(
                    f"/{'/'.join(path)}/{index}", f"is the {what} of one before it"
                )
            seen.append(name)

    return rule


def _labels_are_categories(node: Node) -> Violations:
    """Require one point of each category in every series, in any order."""
    categories = items_of(_object(node["axis_config"]), "categories")
    for at, series in enumerate(items_of(node, "series")):
        labels = [_object(one)["label"] for one in items_of(_object(series), "data")]
        for index, name in enumerate(labels):
            where = f"/series/{at}/data/{index}/label"
            if name not in categories:
                yield Violation(where, "is no category of axis_config")
            elif name in labels[:index]:
                yield Violation(where, "is the label of a point before it")
        if any(name not in labels for name in categories):
            yield Violation(
                f"/series/{at}/data", "has no point in a category of axis_config"
            )


def _object(value: ReadOnlyJSON) -> Node:
    return value if isinstance(value, Mapping) else {}


_WITH_AXIS = Record(
    {
        "series": Many(_SERIES, limits.CHART_SERIES),
        "axis_config": Record(
            {"categories": Many(_LABEL, limits.CHART_POINTS)},
            {"x_label": _AXIS_TITLE, "y_label": _AXIS_TITLE},
        ),
    },
    rules=(
        _unique("name", "series"),
        _unique("category", "axis_config", "categories"),
        _labels_are_categories,
    ),
)
_SEGMENT = Record({"label": _LABEL, "value": Number(is_positive=True)})
_PIE = Record({"segments": Many(_SEGMENT, limits.CHART_SERIES)})

DATA_VISUALIZATION = Record(
    {
        "title": Str(limits.CHART_TITLE),
        "chart": Tagged(
            "a chart",
            {"pie": _PIE, "bar": _WITH_AXIS, "area": _WITH_AXIS, "line": _WITH_AXIS},
        ),
    },
    {"block_id": ID},
)
