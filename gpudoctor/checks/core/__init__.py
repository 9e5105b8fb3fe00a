"""What every check shares: the registry, the case, findings, limits, causes. No check lives here."""
