"""Authentication of LangGraph's Agent Server: only Keyturn's key answers questions.

``langgraph.json`` names it: ``{"auth": {"path": "./agent_server_auth.py:auth"}}``.
``APP_KEY`` is the key of your application, ``KEYTURN_KEY`` that of Keyturn. Keyturn's
key must see all threads of its graphs.
"""

from __future__ import annotations

import os

from langgraph_sdk import Auth

auth = Auth()
USERS = {os.environ["APP_KEY"]: "app", os.environ["KEYTURN_KEY"]: "keyturn"}


@auth.authenticate
async def authenticate(headers: dict[bytes, bytes]) -> str:
    """Return the user of a key."""
    user = USERS.get(headers.get(b"x-api-key", b"").decode())
    if user is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="no valid key")
    return user


@auth.on.threads.create_run
async def may_run(ctx: Auth.types.AuthContext, value: Auth.types.RunsCreate) -> None:
    """Refuse runs that resume a thread with another key."""
    given = value.get("kwargs")
    resumes = given is None or bool(given.get("command"))
    if resumes and ctx.user.identity != "keyturn":
        raise Auth.exceptions.HTTPException(status_code=403, detail="People decide.")


@auth.on.threads.update
async def may_change(
    ctx: Auth.types.AuthContext,
    value: Auth.types.ThreadsUpdate,  # noqa: ARG001 - the server passes it
) -> None:
    """Refuse changes of a thread's state with another key."""
    if ctx.user.identity != "keyturn":
        raise Auth.exceptions.HTTPException(status_code=403, detail="People decide.")
