"""Build the modals from records, and read their submissions."""
