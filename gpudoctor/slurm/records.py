"""What a hook writes for people and programs: log lines, its last verdict, and metrics."""

from __future__ import annotations

import os
import syslog
import time
from pathlib import Path

from gpudoctor.exits import printable
from gpudoctor.exits import say as say_to_stderr
from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.slurm.settings import HookSettings

_LOG_BYTES_MAX = 1 << 20
_SOCKET = "/dev/log"
_VERDICT = "gpudoctor_slurm_verdict"
_TIME = "gpudoctor_slurm_timestamp_seconds"
_WITHHELD = "gpudoctor_slurm_withheld"


class HookLog:
    """Logs lines about this node to stderr, to syslog, and to the file in GPUDOCTOR_LOG.

    slurmd drops what a prolog or epilog prints. Without syslog and GPUDOCTOR_LOG, lines go to `log` in the state
    folder, which is renamed to `log.1` at 1 MiB.
    """

    def __init__(self, node: str, settings: HookSettings) -> None:
        self._node = node
        self._has_syslog = os.path.exists(_SOCKET)  # noqa: PTH110
        self._file = settings.log or (None if self._has_syslog else settings.state / "log")
        self._own = settings.log is None

    def say(self, message: str) -> None:
        """Log one line; a destination that fails does not affect the others."""
        line = printable(f"{self._node}: {message}")
        say_to_stderr(line)
        if self._has_syslog:
            syslog.openlog("gpudoctor", 0, syslog.LOG_DAEMON)
            syslog.syslog(syslog.LOG_WARNING, line)
        if self._file is None:
            return
        try:
            self._append(self._file, f"[{time.strftime('%Y-%m-%dT%H:%M:%S')}] gpudoctor: {line}\n")
        except OSError as error:
            say_to_stderr(f"{self._file}: {error.strerror or error}")

    def _append(self, file: Path, line: str) -> None:
        if self._own:
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_file() and file.stat().st_size > _LOG_BYTES_MAX:
                file.replace(file.with_name("log.1"))
        # unbuffered and in append mode: slurmd may write to the same file
        number = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        with os.fdopen(number, "wb", buffering=0) as log:
            log.write(line.encode("utf-8", "backslashreplace"))


def write_last(settings: HookSettings, hook: str, verdict: str, why: str) -> None:
    """Write the hook's last verdict as one line: time, pass, warn, fail or unknown, reason. Raise OutputError."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_file(settings.state / hook, f"{at} {verdict} {printable(why)}\n")


def write_metrics(settings: HookSettings, hook: str, verdict: str, *, withheld: bool) -> str | None:
    """Write the hook's metrics for node_exporter's textfile collector; return the error message, None if it worked."""
    folder = settings.textfile or settings.state
    try:
        write_file(folder / f"gpudoctor_slurm_{hook}.prom", metrics(settings, hook, verdict, withheld, time.time()))
    except OutputError as error:
        return str(error)
    return None


def metrics(settings: HookSettings, hook: str, verdict: str, withheld: bool, time_s: float) -> str:
    """Three gauges with the label `hook`, and simulated="true" in a trial."""
    mark = f'hook="{hook}"' + (',simulated="true"' if settings.trial else "")
    return (
        f"# HELP {_VERDICT} What a Slurm hook found last: pass, warn, fail or unknown, which is 1.\n"
        f"# TYPE {_VERDICT} gauge\n"
        f'{_VERDICT}{{{mark},verdict="{verdict}"}} 1\n'
        f"# HELP {_TIME} When that Slurm hook ran last, Unix time.\n"
        f"# TYPE {_TIME} gauge\n"
        f"{_TIME}{{{mark}}} {time_s:.0f}\n"
        f"# HELP {_WITHHELD} Whether it found a failure and did not drain: only logged, no check that drains, cap.\n"
        f"# TYPE {_WITHHELD} gauge\n"
        f"{_WITHHELD}{{{mark}}} {int(withheld)}\n"
    )
