"""Sample charts, as the block `data_visualization`."""

from typing import Any

DAYS = ["Mon 16", "Tue 17", "Wed 18"]


def chart(**payload: Any) -> dict[str, Any]:
    """Return a block with this chart."""
    return {
        "type": "data_visualization",
        "title": "Calls of each day",
        "chart": payload,
    }


def pie_chart(*segments: tuple[str, float]) -> dict[str, Any]:
    """Return a pie of these labels and values."""
    parts = [{"label": label, "value": value} for label, value in segments]
    return chart(type="pie", segments=parts)


def series(name: str, *values: float) -> dict[str, Any]:
    """Return values, one for each of `DAYS`."""
    pairs = zip(DAYS, values, strict=True)
    points = [{"label": label, "value": value} for label, value in pairs]
    return {"name": name, "data": points}


def axis_chart(kind: str, *drawn: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a chart of series over `DAYS`."""
    axis = {"categories": [*DAYS], "x_label": "Day", "y_label": "Calls"}
    return chart(type=kind, series=[*drawn], axis_config=axis | more)


CHARTS: dict[str, dict[str, Any]] = {
    kind: axis_chart(kind, series("Approved", 4, 0, 2.5), series("Net", -1, 7, 3))
    for kind in ("bar", "area", "line")
} | {"pie": pie_chart(("Approved", 4), ("Rejected", 0.5)) | {"block_id": "b"}}
