"""Resume agents: run their threads, deliver answers, recover lost ones."""
