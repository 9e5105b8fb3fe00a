"""burn.*: what repeating the load for minutes reveals."""
