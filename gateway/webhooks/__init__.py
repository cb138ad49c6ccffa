"""Tell programs elsewhere, by signed webhooks, that their threads have decisions."""
