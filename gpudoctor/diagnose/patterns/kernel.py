"""Messages of a kernel log that `facts.kernel_log` does not read: processes that were killed or crashed."""

from __future__ import annotations

from gpudoctor.diagnose.patterns.model import rows

KERNEL = rows(
    ("host_oom", "killed process", r"Killed process (?P<pid>\d+) \((?P<name>[^)]{0,64})\)", "cause", 3),
    ("host_oom", "oom-kill:", r"oom-kill:constraint=\w+,.{0,800}?,pid=(?P<pid>\d+)", "cause", 3),
    ("segfault", "segfault at", r"\[(?P<pid>\d+)\]: segfault at", "exit", 2),
)
