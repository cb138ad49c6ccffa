"""Error responses of the fake Web API, with Slack's error names."""

from keyturn.sandbox.json_types import JsonObject


class ApiError(Exception):
    """A call that Slack would refuse, with the error name and details of its response.

    Attributes:
        error: Slack's error name, such as `channel_not_found`.
        facts: further members of the answer, such as `needed` and `provided`.
    """

    def __init__(self, error: str, **facts: object) -> None:
        super().__init__(error)
        self.error = error
        self.facts: JsonObject = facts

    def answer(self) -> JsonObject:
        """Return the body Slack would send."""
        return {"ok": False, "error": self.error, **self.facts}
