"""The embedded Valkey server of one machine."""
