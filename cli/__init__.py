"""The commands of ``keyturn``, one file per group; they may import every package."""
