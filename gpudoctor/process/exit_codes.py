"""Exit codes of every command; docs/exit-codes.md. `process/signals.py` has those of a signal, 128 + its number."""

from typing import Literal

# `exit_code` in report/judge.py decides which one a check has
OK = 0  # no failure
FAILED = 1  # at least one fail
COULD_NOT = 2  # gpudoctor could not do its work
UNKNOWN = 3  # no failure, but something is unknown

# from which status on a verdict is FAILED
FailOn = Literal["fail", "warn", "never"]
