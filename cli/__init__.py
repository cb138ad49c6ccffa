"""The commands of ``twokey``, one file a group; the only rooms that know everything."""
