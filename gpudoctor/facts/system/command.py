"""The output of a program as a fact, or the reason why it is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpudoctor.facts.model.missing import Missing
from gpudoctor.process.command import CommandLateError, Completed
from gpudoctor.process.command import run_command as run_to_end


def run_command(argv: Sequence[str], deadline_s: float, max_bytes: int = 4 << 20) -> Completed | Missing:
    """Like `process.command`, in the C locale, so that messages do not depend on the user's.

    Missing if the program is not installed, not allowed or not finished in time.
    """
    try:
        return run_to_end(argv, deadline_s, max_bytes, {**os.environ, "LC_ALL": "C", "LANG": "C"})
    except CommandLateError as error:
        return Missing(str(error), "failed")
    except FileNotFoundError:
        return Missing(f"{argv[0]} is not installed", "absent")
    except PermissionError:
        return Missing(f"{argv[0]}: no permission to run it", "denied")
    except OSError as error:
        return Missing(f"{argv[0]}: {error.strerror}", "failed")
