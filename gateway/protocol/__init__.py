"""Wire protocol between agents and the gateway; neither side imports the other."""
