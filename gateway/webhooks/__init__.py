"""Send signed webhooks about decisions to programs that run threads elsewhere."""
