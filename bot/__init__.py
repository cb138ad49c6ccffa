"""The Slack app of Keyturn: cards, modals and event listeners."""
