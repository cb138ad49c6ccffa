"""Run a sandbox server in the current task, for the command line."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from keyturn.sandbox.blockkit.formats import web_url
from keyturn.sandbox.records import Suggestion
from keyturn.sandbox.server import Sandbox

EXPOSED = (
    "# Warning: other machines can reach this sandbox. Anyone with the link below acts "
    "as any person in it."
)


async def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    request_url: str = "",
    state_path: Path | None = None,
    suggestions: Sequence[Suggestion] = (),
    announce: Callable[[str], None],
) -> None:
    """Run a sandbox until the task is cancelled.

    `announce` gets each line for the user: the page's address, and the settings that
    connect an app. Without `request_url` the app uses Socket Mode.

    Raises:
        OSError: the port is taken.
        ValueError: `state_path` is not a saved sandbox, or `request_url` not a URL.
    """
    async with Sandbox(
        host=host, port=port, suggestions=suggestions, state_path=state_path
    ) as sandbox:
        if request_url:
            if problem := web_url(request_url):
                raise ValueError(f"The request URL {request_url!r} is not {problem}.")
            sandbox.deliver_http(request_url)
        for line in settings(sandbox):
            announce(line)
        await asyncio.Event().wait()


def settings(sandbox: Sandbox) -> list[str]:
    """Return the page's address and the environment of a bot, to paste in a shell."""
    is_exposed = sandbox.page_url != sandbox.url
    return [
        *([EXPOSED] if is_exposed else []),
        f"# A local Slack: {sandbox.page_url}",
        f"export KEYTURN_SLACK_API_URL={sandbox.api_url}",
        f"export SLACK_BOT_TOKEN={sandbox.bot_token}",
        f"export SLACK_APP_TOKEN={sandbox.app_token}",
        f"export SLACK_SIGNING_SECRET={sandbox.signing_secret}",
    ]
