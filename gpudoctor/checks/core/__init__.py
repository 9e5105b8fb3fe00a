"""What the checks share: registry, case, findings, limits and causes. Contains no checks."""
