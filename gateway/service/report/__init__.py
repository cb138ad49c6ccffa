"""Write and read the audit log, follow events, and check processes."""
