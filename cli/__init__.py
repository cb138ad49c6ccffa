"""The commands of ``twokey``, one file per group; they may import every package."""
