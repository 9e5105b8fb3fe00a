"""burn.*: what repeating the load for minutes brought to light."""
