"""What the facts mean. Checks are pure: facts, measurements and profile in, findings out."""
