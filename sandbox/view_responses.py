"""Apply the ``response_action`` of the app's answer to a view submission."""

from dataclasses import replace

from keyturn.sandbox import views
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.elements import input_blocks
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject, as_object
from keyturn.sandbox.records import View
from keyturn.sandbox.validation import check_view

CONNECTION_ERROR = "We had some trouble connecting. Try again?"


def apply(slack: FakeSlack, view: View, body: object) -> JsonObject:
    """Close, replace, cover or keep the view, according to `response_action`.

    Slack shows "trouble connecting" for an invalid answer. Here the answer is also
    recorded among the app's problems, and the result contains the error. Source:
    https://docs.slack.dev/surfaces/modals#response_actions
    """
    try:
        current = views.find_view(slack, view.id)
    except ApiError:
        return {"ok": True}
    try:
        return _apply(slack, current, as_object(body))
    except ApiError as refused:
        problem = f"bad answer to view_submission {view.id}: {refused.answer()!r}"
        slack.add_problem(problem)
        slack.notify(view.user, CONNECTION_ERROR, "error")
        return {**refused.answer(), "error": "invalid_response", "why": refused.error}


def _apply(slack: FakeSlack, view: View, body: JsonObject) -> JsonObject:
    match body.get("response_action"):
        case None:
            views.close(slack, view)
        case "clear":
            views.close_all(slack, view.user)
        case "errors":
            return _show_errors(slack, view, as_object(body.get("errors")))
        case "update":
            document = check_view(body.get("view"), kinds=("modal",))
            views.update_view(slack, view, document)
        case "push":
            document = check_view(body.get("view"), kinds=("modal",))
            views.push_modal(slack, view.user, document)
        case other:
            raise ApiError("unknown_response_action", response_action=other)
    return {"ok": True}


def _show_errors(slack: FakeSlack, view: View, errors: JsonObject) -> JsonObject:
    unknown = sorted(set(errors) - input_blocks(view.blocks))
    if unknown:
        raise ApiError("errors_name_no_input_block", unknown=unknown)
    shown = {block_id: str(text) for block_id, text in errors.items()}
    if not shown or not all(shown.values()):
        raise ApiError("errors_are_empty")
    views.store(slack, replace(view, errors=shown))
    return {"ok": True, "errors": shown}
