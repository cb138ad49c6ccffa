"""Sample workspace of the demo and the tests."""

from keyturn.sandbox.records import AppIdentity, Channel, User, UserGroup
from keyturn.sandbox.workspace import Workspace

TEAM = "T0SANDBOX"
OTHER_TEAM = "T0OTHER"

ANA = User("U0ANA", "ana", "Ana Alves", TEAM, color="b0413e", tz="Europe/Lisbon")
BEN = User("U0BEN", "ben", "Ben Boer", TEAM, color="2a6f97", tz="Europe/Amsterdam")
CHLOE = User(
    "U0CHLOE", "chloe", "Chloé Chen", TEAM, color="6a4c93", tz="America/New_York"
)
DAN = User("U0DAN", "dan", "Dan Díaz", TEAM, color="2d7d46", tz="Europe/London")
EVE = User("U0EVE", "eve", "Eve Evans", TEAM, color="8a5a00", tz="Europe/London")
GUEST = User(
    "U0GUEST",
    "guest",
    "Gus Guest",
    TEAM,
    color="55606e",
    is_restricted=True,
    is_ultra_restricted=True,
)
GONE = User("U0GONE", "gone", "Gone Gray", TEAM, color="777777", deleted=True)
STRANGER = User(
    "U0STRANGER",
    "stranger",
    "Sam Stranger",
    OTHER_TEAM,
    color="9c2c77",
    is_stranger=True,
)


def sample_workspace() -> Workspace:
    """Return a fresh workspace: reviewers, a requester, and ineligible people."""
    app = AppIdentity()
    bot = User(app.bot_user, "keyturn", app.name, TEAM, color="1f4e5f", is_bot=True)
    users = (ANA, BEN, CHLOE, DAN, EVE, GUEST, GONE, STRANGER, bot)
    colleagues = frozenset({ANA.id, BEN.id, CHLOE.id, DAN.id, EVE.id})
    channels = (
        Channel(
            "C0APPROVALS",
            "agent-approvals",
            colleagues | {GUEST.id, STRANGER.id, bot.id},
        ),
        Channel("C0GENERAL", "general", colleagues | {bot.id}),
        Channel("C0PRIVATE", "finance", frozenset({ANA.id, CHLOE.id}), is_private=True),
    )
    groups = (
        UserGroup("S0SUPPORT", "support", "Support", (ANA.id, BEN.id)),
        UserGroup("S0SENIOR", "senior", "Senior support", (CHLOE.id,)),
    )
    workspace = Workspace(
        team_id=TEAM,
        team_name="Keyturn Sandbox",
        users={user.id: user for user in users},
        channels={channel.id: channel for channel in channels},
        groups={group.id: group for group in groups},
        app=app,
    )
    for user in workspace.people():
        if not (user.deleted or user.is_stranger):
            workspace.direct_message(user.id)
    return workspace
