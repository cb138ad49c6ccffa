"""Ask a model for its opinion of a call: it may ask for more, and never for less."""
