"""Formats in which agents of other libraries ask people, as pure functions."""
