"""Build the cards: a record in, blocks out."""
