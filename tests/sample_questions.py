"""Questions that an agent asks people in several tests."""

REGION = {
    "question": "Which region?",
    "type": "multiple_choice",
    "choices": ["EU", "US"],
}
EXTRAS = {
    "question": "What else?",
    "type": "multi_select",
    "choices": ["logs", "alerts"],
    "required": False,
    "default": "logs",
}
