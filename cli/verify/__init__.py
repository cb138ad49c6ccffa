"""The command ``keyturn verify``: prove the guarantees on this installation."""
