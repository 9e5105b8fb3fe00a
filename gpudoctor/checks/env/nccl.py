"""env.nccl: does a setting of NCCL, CUDA or torchrun slow training down or stop it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import ENDS, TOGETHER, Explains
from gpudoctor.checks.core.finding import Advice, Finding, Status, fail, ok, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.env.nccl_over_efa import OWN_NETWORKS, efa_findings
from gpudoctor.checks.env.settings import bad, launcher_findings, shown, unset
from gpudoctor.checks.nvlink.link_state import links_up
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Environment, Variable

_INTERFACE_SETTINGS = (("NCCL_SOCKET_IFNAME", False), ("GLOO_SOCKET_IFNAME", True))  # whether as whole names only


@check(
    "env.nccl",
    title="No NCCL or launcher setting slows training down or stops it",
    impact="costs",
    needs_gpu=False,
    explains=(
        Explains(("collective.bandwidth", "collective.pairs", "train.scaling"), anywhere=True),
        Explains(TOGETHER, anywhere=True, found=ENDS),
    ),
)
def nccl_settings(case: Case) -> Iterator[Finding]:
    """Fail settings with which training cannot start or loses its links; warn about costly ones."""
    environment = case.node.environment
    if isinstance(environment.variables, Missing):
        yield unread(NODE, "environment", environment.variables)
        return
    not_judged = [*_not_judged(case)]
    findings = [
        *(unread(NODE, f"{variable.name}={variable.value}: {what}", why) for variable, what, why in not_judged),
        *_switched_off(case),
        *_interfaces(case),
        *_files(case),
        *_left_on(case),
        *launcher_findings(case),
        *efa_findings(case),
    ]
    yield from findings
    if any(f.status not in (Status.PASS, Status.SKIP) for f in findings):
        return
    left_out = {variable.name for variable, _, _ in not_judged}
    named = [v.name for v in environment.starting("NCCL_") if v.name not in left_out]
    if left_out and not named:
        return
    text = f"{len(named)} NCCL settings, none harmful: {', '.join(sorted(named))}" if named else "no NCCL settings"
    yield ok(NODE, text)


def _not_judged(case: Case) -> Iterator[tuple[Variable, str, Missing]]:
    """The settings that harm or not by what was not read: the setting, what that is, and why it was not read."""
    environment, network = case.node.environment, case.node.network
    named = {variable.name: variable for variable in known(environment.variables) or () if variable.value.strip()}
    if not case.gpus and case.node.source.may_be_part and isinstance(case.node.driver.device_count, Missing):
        # the only thing that such a text says of a training: not to be passed over
        why = Missing("no GPU in this text to judge it by", "failed")
        for variable in (_switch_of_p2p(environment), _switched_on(environment, "NCCL_SHM_DISABLE")):
            if variable is not None:
                yield variable, "what it costs", why
    if isinstance(network.rdma_ports, Missing):
        for variable in (_switched_on(environment, "NCCL_IB_DISABLE"), named.get("NCCL_IB_HCA")):
            if variable is not None:
                yield variable, "RDMA ports", network.rdma_ports
    if isinstance(network.interfaces, Missing):
        for name, _ in _INTERFACE_SETTINGS:
            if name in named:
                yield named[name], "network interfaces", network.interfaces


def _switched_on(environment: Environment, name: str) -> Variable | None:
    """The variable if NCCL reads it as a switch that is on: any number but 0."""
    variable = environment.variable(name)
    digits = variable.value.strip().lstrip("+-") if variable else ""
    return variable if digits.isascii() and digits.isdigit() and digits.strip("+-0") else None


def _switch_of_p2p(environment: Environment) -> Variable | None:
    """The variable that switches peer-to-peer off."""
    level = environment.variable("NCCL_P2P_LEVEL")
    off = level if level is not None and level.value.strip().upper() in ("LOC", "0") else None
    return _switched_on(environment, "NCCL_P2P_DISABLE") or off


def _switched_off(case: Case) -> Iterator[Finding]:
    environment, several = case.node.environment, len(case.gpus) > 1
    p2p = _switch_of_p2p(environment)
    if p2p is not None and several:
        yield _p2p_off(case, p2p)
    if several and (shm := _switched_on(environment, "NCCL_SHM_DISABLE")):
        text = " keeps NCCL from shared memory between processes of this node"
        likely = "where GPUs have no peer-to-peer their traffic then takes the network sockets"
        yield bad(warn, shm, text, "not set", likely)
    ports = [port for port in known(case.node.network.rdma_ports) or () if not port.is_efa]
    active = sum(port.is_active for port in ports)
    if active and (ib := _switched_on(environment, "NCCL_IB_DISABLE")):
        text = f" keeps NCCL from the {active} active RDMA ports"
        yield bad(warn, ib, text, "0, or not set", "traffic between nodes goes over TCP sockets instead")


def _p2p_off(case: Case, variable: Variable) -> Finding:
    message = " switches peer-to-peer between GPUs off"
    joined = sum(bool(known(pair.nvlinks)) for pair in case.pairs)
    linked = sum(links_up(gpu) > 0 for gpu in case.gpus)
    able = [pair for pair in case.pairs if known(pair.p2p_read) == "OK"]
    if joined or linked > 1:
        message += ", and with it the NVLinks " + (f"between {joined} pairs" if joined else f"of {linked} GPUs")
        likely = "NCCL falls back to host memory: an order of magnitude slower than NVLink"
        return bad(fail, variable, message, "not set, where GPUs are joined by NVLink", likely)
    if case.pairs and not able and all(not isinstance(p.p2p_read, Missing) for p in case.pairs):
        text = f"{variable.name}={variable.value}{message}; these GPUs have none, so it costs nothing"
        return ok(NODE, text, None, shown(variable))
    expected = "not set, where GPUs can reach each other"
    likely = "set as a way around a hang, which has its cause in IOMMU or ACS settings"
    then = Advice("If NCCL then hangs:", "gpudoctor check pcie.acs")
    return bad(warn, variable, message, expected, likely, unset(variable.name), then)


def _interfaces(case: Case) -> Iterator[Finding]:
    environment, network = case.node.environment, case.node.network
    interfaces = network.interfaces
    for variable_name, exact in _INTERFACE_SETTINGS:
        variable = environment.variable(variable_name)
        if variable is None or not variable.value.strip() or isinstance(interfaces, Missing):
            continue
        names = [interface.name for interface in interfaces]
        if not _selected(variable.value, names, exact):
            expected = f"one of {', '.join(names) or 'none: the node shows no interface'}"
            likely = "the name comes from another machine; init_process_group fails or hangs with it"
            advice = (Advice("Name an interface that exists.", "ip -brief link"), unset(variable_name))
            yield bad(fail, variable, " fits no network interface of this node", expected, likely, *advice)
    adapters = environment.variable("NCCL_IB_HCA")
    ports = network.rdma_ports
    if adapters is None or not adapters.value.strip() or isinstance(ports, Missing):
        return
    devices = [port.device for port in ports if not port.is_efa]
    if devices and not _selected(adapters.value, devices, False):
        expected = f"one of {', '.join(dict.fromkeys(devices))}"
        likely = "the name comes from another machine; NCCL then uses TCP sockets between nodes"
        advice = (Advice("Name adapters that exist.", "ibstat -l"), unset("NCCL_IB_HCA"))
        yield bad(warn, adapters, " fits no RDMA adapter of this node", expected, likely, *advice)


def _selected(value: str, names: Iterable[str], exact: bool) -> list[str]:
    """The names that NCCL's list selects: prefixes, `=` for whole names, `^` for all but these.

    Source: NCCL user guide, NCCL_SOCKET_IFNAME and NCCL_IB_HCA (with entries `device:port`). Gloo accepts whole
    names only (`exact`).
    """
    text = value.strip()
    exclude = not exact and text.startswith("^")
    text = text[1:] if exclude else text
    whole = exact or text.startswith("=")
    text = text.removeprefix("=")
    items = [item.strip().partition(":")[0] for item in text.split(",") if item.strip()]
    hit = [n for n in names if any(n == item if whole else n.startswith(item) for item in items)]
    return [n for n in names if n not in hit] if exclude else hit


def _files(case: Case) -> Iterator[Finding]:
    for name, judge, likely in (
        ("NCCL_GRAPH_FILE", fail, "NCCL refuses to start without its graph file"),
        (
            "NCCL_TOPO_FILE",
            warn,
            "NCCL goes on without it: in a VM it then does not know how GPUs and adapters are wired",
        ),
    ):
        variable = case.node.environment.variable(name)
        if variable is not None and (variable.path_exists is False or not variable.value.strip()):
            yield bad(judge, variable, " names no file that exists", "a file that exists, or not set", likely)
        elif variable is not None and variable.path_exists is None and case.node.source.kind == "live":
            text = "whether that file exists is not known: its file system does not answer"
            yield unknown(NODE, f"{name}={variable.value}: {text}", shown(variable))


def _left_on(case: Case) -> Iterator[Finding]:
    environment = case.node.environment

    def costly(variable: Variable, expected: str, cost: str) -> Finding:
        return bad(warn, variable, f": {cost}", expected, "left over from debugging")

    debug = environment.variable("NCCL_DEBUG")
    if debug is not None and debug.value.strip().upper() in ("INFO", "TRACE"):
        yield costly(debug, "WARN, VERSION or not set", "debugging output left on: it floods logs and slows start-up")
    for name, cost in (
        ("CUDA_LAUNCH_BLOCKING", "every kernel launch waits for the GPU: computing and communication cannot overlap"),
        ("TORCH_NCCL_BLOCKING_WAIT", "collectives block the process, and no watchdog ends a hung one"),
    ):
        if variable := _switched_on(environment, name):
            yield costly(variable, "0, or not set", cost)
    no_tf32 = environment.variable("NVIDIA_TF32_OVERRIDE")
    if no_tf32 is not None and no_tf32.value.strip() == "0":
        yield costly(no_tf32, "not set", "float32 products never use tensor cores, whatever the program chooses")
    detail = environment.variable("TORCH_DISTRIBUTED_DEBUG")
    if detail is not None and detail.value.strip().upper() == "DETAIL":
        yield costly(detail, "OFF, INFO or not set", "every collective is checked against the other ranks first")
    profiled = ("not set outside profiling", "a profiler is loaded into every process")
    forced = "NCCL may not choose the {} that is best for a message size"
    choices = (
        ("NCCL_ALGO", "not set: NCCL chooses", forced.format("algorithm")),
        ("NCCL_PROTO", "not set: NCCL chooses", forced.format("protocol")),
    )
    for name, expected, cost in (
        *((name, *profiled) for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NCCL_PROFILER_PLUGIN")),
        *(() if _uses_net_plugin(case) else choices),
    ):
        variable = environment.variable(name)
        if variable is not None and variable.value.strip():
            yield costly(variable, expected, cost)


def _uses_net_plugin(case: Case) -> bool:
    """Whether NCCL's traffic between nodes goes through a plugin, whose vendor may prescribe algorithm and protocol.

    Google Cloud does for GPUDirect-TCPX and FasTrak, AWS did for EFA.
    """
    named = (case.node.environment.get("NCCL_NET") or "").strip().lower()
    efa = any(port.is_efa and port.is_active for port in known(case.node.network.rdma_ports) or ())
    return efa or named not in ("", *OWN_NETWORKS)
