"""The audit log: entries in the store, files, and the signed tree."""
