"""What a hook writes for people and programs: log lines, its last verdict, and metrics."""

from __future__ import annotations

import os
import syslog
import time

from gpudoctor.exits import printable, say
from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.slurm.settings import HookSettings

_LOG_BYTES_MAX = 1 << 20
_SOCKET = "/dev/log"


def log_line(node: str, settings: HookSettings, message: str) -> None:
    """Log a line about this node to stderr, to syslog, and to the file in GPUDOCTOR_LOG; each even if another fails.

    slurmd drops what a prolog or epilog prints. Without syslog and GPUDOCTOR_LOG, lines go to `log` in the state
    folder, which is renamed to `log.1` at 1 MiB.
    """
    line = printable(f"{node}: {message}")
    say(line)
    file = settings.log
    if os.path.exists(_SOCKET):  # noqa: PTH110
        syslog.openlog("gpudoctor", 0, syslog.LOG_DAEMON)
        syslog.syslog(syslog.LOG_WARNING, line)
    elif file is None:
        file = settings.state / "log"
    if file is None:
        return
    try:
        if settings.log is None:
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_file() and file.stat().st_size > _LOG_BYTES_MAX:
                file.replace(file.with_name("log.1"))
        # unbuffered and in append mode: slurmd may write to the same file
        number = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        with os.fdopen(number, "wb", buffering=0) as log:
            text = f"[{time.strftime('%Y-%m-%dT%H:%M:%S')}] gpudoctor: {line}\n"
            log.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        say(f"{file}: {error.strerror or error}")


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
    found, kept = f'{mark},verdict="{verdict}"', str(int(withheld))
    why_kept = "Whether it found a failure and did not drain: only logged, no check that drains, cap."
    gauges = (
        ("verdict", "What a Slurm hook found last: pass, warn, fail or unknown, which is 1.", found, "1"),
        ("timestamp_seconds", "When that Slurm hook ran last, Unix time.", mark, f"{time_s:.0f}"),
        ("withheld", why_kept, mark, kept),
    )
    lines = ""
    for name, text, labels, value in gauges:
        name = f"gpudoctor_slurm_{name}"
        lines += f"# HELP {name} {text}\n# TYPE {name} gauge\n{name}{{{labels}}} {value}\n"
    return lines
