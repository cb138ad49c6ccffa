"""Errors that the Web API answers, by Slack's names."""

from twokey.sandbox.json_types import JsonObject


class Refused(Exception):
    """Carry one of Slack's error names, and the facts Slack sends with it.

    Attributes:
        error: Slack's own name, such as `channel_not_found`.
        facts: further members of the answer, such as `needed` and `provided`.
    """

    def __init__(self, error: str, **facts: object) -> None:
        super().__init__(error)
        self.error = error
        self.facts: JsonObject = facts

    def answer(self) -> JsonObject:
        """Return the body Slack would send."""
        return {"ok": False, "error": self.error, **self.facts}
