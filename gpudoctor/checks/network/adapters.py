"""network.adapters: do the network adapters have enough power, working firmware, stable links and few errors?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.driver_messages import DAY_S, EventMeaning, count_a_day, is_recent, log_lines
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, Subject, of_nic
from gpudoctor.checks.core.unread import failed_readings, unread
from gpudoctor.checks.measured.under_load import median
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import HostEvent, HostEventKind, RdmaPort

_HOUR_S = 3600.0
_BOOT_S = 600.0
_FLAPS = Limit(5, "times a day", "AzureHPC node health checks: 5 link losses in 24 hours", name="flaps", status="warn")
_BURST = Limit(3, "times in 3 hours", "Azure healthagent: 3 link losses in 3 hours", name="burst", status="warn")
_ERRORS = Limit(10, "errors", "ibqueryerrors' default threshold", name="errors", status="warn")
_ERRORS_PER_HOUR = Limit(
    10, "errors an hour", "100 Gbit/s at the bit error ratio of 10^-15 that IBTA allows has 0.4", name="errors_per_hour"
)


_RULES: dict[HostEventKind, EventMeaning] = {
    "nic-power": EventMeaning(
        "the adapter finds insufficient power on its PCIe slot",
        "the slot gives less than the adapter and its transceivers draw: they may not come up, or run slower",
        (
            Advice("See what the slot gives, and what is plugged in.", "dmesg | grep -i 'power on the PCIe slot'"),
            Advice("Connect the auxiliary power cable of the adapter, or move it to a slot of 75 W."),
            Advice("Set the slot's power in the BIOS, update BIOS and adapter firmware; still so: hardware case."),
        ),
        lasting=True,
    ),
    "nic-firmware": EventMeaning(
        "the adapter's firmware answers with errors",
        "firmware and driver do not fit, or the adapter is failing",
        (
            Advice("See the firmware, and what the driver wants.", "mstflint -d BUS_ID q; dmesg | grep mlx5_core"),
            Advice("Update and reset the adapter; it returns: hardware case.", "mlxfwreset -d BUS_ID reset"),
        ),
    ),
    "nic-cable": EventMeaning(
        "the adapter complains about its cable or transceiver",
        "a cable or transceiver that is not seated, not supported, or failing",
        (Advice("See what it says of the module.", "mlxlink -d BUS_ID -m"), Advice("Reseat or swap the cable.")),
    ),
    "nic-temperature": EventMeaning(
        "the adapter or its transceiver is too hot",
        "airflow: the adapter switches the port off when it gets hotter",
        (Advice("See the temperatures.", "mget_temp -d BUS_ID; sensors"), Advice("Look at fans and blocked slots.")),
    ),
}
# the firmware's own status of a command
_LIMITS_EXCEEDED = "status limits exceeded"
_NO_MORE_KEYS = EventMeaning(
    "the adapter refuses a command: its limits are exceeded",
    "a program registers more memory regions, or opens more queues, than the adapter has room for",
    (
        Advice("See which command is refused; CREATE_MKEY is the registration of memory.", "dmesg | grep mlx5_cmd"),
        Advice("Let the program register fewer, larger regions (UCX_IB_RCACHE_MAX_REGIONS, huge pages)."),
    ),
)
_COUNTERS = (
    ("symbol_errors", "symbol errors", "symbol_error"),
    ("receive_errors", "receive errors", "port_rcv_errors"),
    ("link_recoveries", "link recoveries", "link_error_recovery"),
)
_LOSS = "a cable, transceiver or switch port at its end: every loss ends the collectives that run over it"
_FLAP_ADVICE = (
    Advice("See when, and what the link says of itself.", "dmesg -T | grep -iE 'link (down|up)'; mlxlink -d BUS_ID -c"),
    Advice("Reseat or swap the cable and transceiver; see whether the fault follows them or stays with the port."),
    Advice("Several nodes at once: it is the switch."),
)
_ERROR_ADVICE = (
    Advice("See whether they grow.", "perfquery -x; ethtool -S INTERFACE | grep -iE 'err|discard'"),
    Advice("Clean or swap the cable and transceiver, then clear the counters.", "perfquery -R"),
)


@check(
    "network.adapters",
    title="No network adapter lacks power, drops its link or counts errors",
    needs_gpu=False,
    limits=(_FLAPS, _BURST, _ERRORS, _ERRORS_PER_HOUR),
    events=(*_RULES, "nic-link-down", "nic-link-up"),
)
def adapters(case: Case) -> Iterator[Finding]:
    """Warn by the kernel's messages on adapters, and by their ports' counters relative to the time they cover."""
    problems = [*_logged(case), *_link_losses(case), *_counted(case)]
    failed = list(_failed_readings(case))
    yield from (*problems, *failed)
    if not problems and not failed:
        yield _nothing_wrong(case)


def _failed_readings(case: Case) -> Iterator[Finding]:
    ports, events = case.node.network.rdma_ports, case.node.kernel_log.host_events
    yield from failed_readings(NODE, ("RDMA ports", ports), ("kernel log", events))
    for port in known(ports) or ():
        counters = ("link_downed", *(name for name, *_ in _COUNTERS))
        yield from failed_readings(
            of_nic(port.device), *((f"port {port.port}, {name}", getattr(port, name)) for name in counters)
        )


def _nothing_wrong(case: Case) -> Finding:
    """What was looked at; a skip if that is neither the counters nor the kernel log."""
    ports, events = case.node.network.rdma_ports, known(case.node.kernel_log.host_events)
    if not known(ports) and (logged := _logged_only(events or ())) is not None:
        return logged
    if isinstance(ports, Missing):
        return unread(NODE, "adapters", ports) if events is None else skip(NODE, "no adapter is told of")
    if not ports:
        return skip(NODE, "no InfiniBand or RoCE adapter here")
    counted = [port for port in ports if not isinstance(port.link_downed, Missing)]
    if not counted and events is None:
        return skip(NODE, "neither the ports' counters nor the kernel log to judge the adapters by")
    names = {port.device for port in (counted if events is None else ports)}
    looked = [*(["counters"] if counted else []), *(["kernel log"] if events is not None else [])]
    text = f"{len(names)} adapter{'s' * (len(names) > 1)} without a fault in {' and '.join(looked)}"
    return ok(NODE, Found(text, len(names), "adapters"))


def _logged_only(events: Sequence[HostEvent]) -> Finding | None:
    """A pass for adapters that nothing but the kernel log tells of; None if it tells of none."""
    adapters = {event.device for event in events if event.kind.startswith("nic-")}
    if not adapters:
        return None
    text = f"{len(adapters)} adapter{'s' * (len(adapters) > 1)} in the kernel log, without a fault that matters now"
    lines = [event.text for event in events if event.kind in (*_RULES, "nic-link-down")]
    return ok(NODE, Found(text, len(adapters), "adapters"), None, *(Evidence("kernel log", line) for line in lines[:3]))


def _subject(case: Case, event: HostEvent) -> Subject:
    """The adapter by its RDMA name if a known port has the event's bus id or interface, else by the event's device."""
    for port in known(case.node.network.rdma_ports) or ():
        if event.device is not None and event.device in (known(port.bus_id), known(port.interface)):
            return Subject(kind="nic", name=port.device, bus_id=known(port.bus_id))
    if event.device is None:
        return of_nic("a network adapter")
    return Subject(kind="nic", name=event.device, bus_id=event.device if ":" in event.device else None)


def _logged(case: Case) -> Iterator[Finding]:
    for event in known(case.node.kernel_log.host_events) or ():
        rule = _NO_MORE_KEYS if _LIMITS_EXCEEDED in event.text else _RULES.get(event.kind)
        if rule is None or not (rule.lasting or is_recent(case, event)):
            continue
        often = f" ({event.count} times)" if event.count > 1 else ""
        of = f"{event.device}: " if event.device else ""
        yield warn(
            _subject(case, event),
            Found(f"{of}{rule.words}{often}", event.count, "lines"),
            "none of this in the kernel log",
            *log_lines([event]),
            likely=rule.likely,
            advice=[_on(step, event.device) for step in rule.advice],
        )


def _on(step: Advice, bus_id: str | None) -> Advice:
    if step.command is None or bus_id is None or ":" not in bus_id:
        return step
    return msgspec.structs.replace(step, command=step.command.replace("BUS_ID", bus_id))


def _link_losses(case: Case) -> Iterator[Finding]:
    """Links that dropped repeatedly according to the kernel log or to the port's counter; one finding per link."""
    logged = [finding for event in known(case.node.kernel_log.host_events) or () if (finding := _lost(case, event))]
    yield from logged
    yield from _lost_unseen(case)
    yield from _lost_by_counter(case, {finding.subject.name for finding in logged})


def _lost(case: Case, event: HostEvent) -> Finding | None:
    """A finding for a link that the kernel log shows to drop again and again, or to be down still."""
    if event.kind != "nic-link-down" or not is_recent(case, event):
        return None
    lasted_s = None if event.first_s is None or event.last_s is None else event.last_s - event.first_s
    # an excerpt of a log may have no times, but it shows what caused trouble
    burst = event.count >= case.limit(_BURST) and (lasted_s is None or lasted_s <= 3 * _HOUR_S)
    often = count_a_day(event) >= case.limit(_FLAPS)
    if not (burst or often or _still_down(case, event)):
        return None
    of = f"{event.device}: " if event.device else ""
    what = f"the link went down {event.count} times" if event.count > 1 else "the link went down"
    limit = _FLAPS if often else _BURST
    expected = Expected(f"fewer than {case.limit(limit):g} {limit.unit}", "<", case.limit(limit), limit.unit)
    if not burst and not often:
        what, expected = f"{what}, and not up again in this log", Expected("up")
    elif not often:
        what += " within 3 hours" if lasted_s is not None else " in this log"
    return warn(
        _subject(case, event),
        Found(f"{of}{what}", event.count, "times"),
        expected,
        *log_lines([event]),
        likely=_LOSS,
        advice=[_on(step, event.device) for step in _FLAP_ADVICE],
    )


def _still_down(case: Case, event: HostEvent) -> bool:
    """Whether the log shows more losses of the link than returns; facts about ports show it better."""
    if not isinstance(case.node.network.rdma_ports, Missing):
        return False
    ups = {e.device: e.count for e in known(case.node.kernel_log.host_events) or () if e.kind == "nic-link-up"}
    return event.count > ups.get(event.device, 0)


def _lost_by_counter(case: Case, named: set[str | None]) -> Iterator[Finding]:
    """Ports that lost their link too often for the uptime, without those that are `named` already."""
    up_s, most = known(case.node.host.uptime_s), case.limit(_FLAPS)
    if up_s is None:
        return
    for port in known(case.node.network.rdma_ports) or ():
        lost_times = known(port.link_downed)
        if lost_times is None or port.device in named or lost_times / max(up_s / DAY_S, 1.0) < most:
            continue
        per_day = lost_times / max(up_s / DAY_S, 1.0)
        yield warn(
            of_nic(port.device),
            Found(f"port {port.port} lost its link {lost_times} times, {per_day:.0f} a day", lost_times, "times"),
            Expected(f"fewer than {most:g} a day", "<", most, "times a day", case.limit_source(_FLAPS)),
            _counter(port, "link_downed", lost_times),
            likely=_LOSS,
            advice=[_on(step, known(port.bus_id)) for step in _FLAP_ADVICE],
        )


def _lost_unseen(case: Case) -> Iterator[Finding]:
    """Links that came up again and again in a log that may lack the lines of their losses.

    The log of a machine whose uptime is known is whole: without any such line, an interface was only configured again,
    as several times at boot.
    """
    events = known(case.node.kernel_log.host_events) or ()
    if known(case.node.host.uptime_s) is not None or any(event.kind == "nic-link-down" for event in events):
        return
    for event in events:
        lasted_s = (event.last_s or 0) - (event.first_s or 0)
        if event.kind != "nic-link-up" or event.count <= case.limit(_BURST) or lasted_s > 3 * _HOUR_S:
            continue
        if event.first_s is not None and event.first_s < _BOOT_S:
            continue
        of = f"{event.device}: " if event.device else ""
        yield warn(
            _subject(case, event),
            Found(f"{of}the link came up {event.count} times in this log", event.count, "times"),
            Expected("once, or with the lines that say why it went down"),
            *log_lines([event]),
            likely="it was lost in between: a cable, transceiver or switch port; or the interface was set up "
            "again, or the node rebooted, which this log does not show",
            advice=[_on(step, event.device) for step in _FLAP_ADVICE],
        )


def _counted(case: Case) -> Iterator[Finding]:
    """Counters that are high for the uptime, as they are rarely reset; without it, those far above the peers'."""
    ports = known(case.node.network.rdma_ports) or ()
    up_s = known(case.node.host.uptime_s)
    most, source = case.limit(_ERRORS_PER_HOUR), case.limit_source(_ERRORS_PER_HOUR)
    for port in ports:
        high = [
            (message, name, count)
            for leaf, message, name in _COUNTERS
            if (count := known(getattr(port, leaf))) is not None and _is_high(case, port, leaf, count, ports)
        ]
        if not high:
            continue
        text = ", ".join(f"{count} {message}" for message, _, count in high)
        hours = f" in {up_s / _HOUR_S:.0f} hours" if up_s is not None else ""
        yield warn(
            of_nic(port.device),
            Found(f"port {port.port} counts {text}{hours}", high[0][2], "errors"),
            Expected(f"at most {most:g} an hour", "<=", most, "errors an hour", source),
            *(_counter(port, name, count) for _, name, count in high),
            likely="a dirty or failing cable or transceiver: packets are sent again, and collectives wait for them",
            advice=_ERROR_ADVICE,
        )


def _counter(port: RdmaPort, name: str, count: int) -> Evidence:
    return Evidence(f"/sys/class/infiniband/{port.device}/ports/{port.port}/counters/{name}", str(count))


def _is_high(case: Case, port: RdmaPort, leaf: str, count: int, ports: tuple[RdmaPort, ...]) -> bool:
    if count <= case.limit(_ERRORS):
        return False
    up_s = known(case.node.host.uptime_s)
    if up_s is not None:
        return count / max(up_s / _HOUR_S, 1.0) > case.limit(_ERRORS_PER_HOUR)
    peers = [n for p in ports if p is not port and (n := known(getattr(p, leaf))) is not None]
    return bool(peers) and count > 10 * max((median(peers) or 0), 1)
