"""Build the modals: a record in, a view out; and read what comes back."""
