"""The findings of a run: pure functions of what was watched, each with its page beside it."""
