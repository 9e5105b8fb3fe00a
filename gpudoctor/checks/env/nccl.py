"""env.nccl: settings of NCCL, CUDA and torchrun that slow training down or stop it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import ENDS, Explains
from gpudoctor.checks.core.finding import NODE, Advice, Evidence, Finding, fail, ok, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Environment, Variable

ID = "env.nccl"
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@check(
    ID,
    title="No NCCL or launcher setting slows training down or stops it",
    impact="costs",
    needs_gpu=False,
    explains=(
        Explains(("collective.bandwidth", "collective.pairs", "train.scaling"), anywhere=True),
        Explains(("collective.*", "train.*", "strategy.*"), anywhere=True, found=ENDS),
    ),
)
def nccl_settings(case: Case) -> Iterator[Finding]:
    """Fail settings with which training cannot start or loses its links; warn about costly ones."""
    environment = case.node.environment
    if isinstance(environment.variables, Missing):
        yield unread(NODE, "environment", environment.variables)
        return
    findings = [
        *_switched_off(case),
        *_interfaces(case),
        *_files(environment),
        *_left_on(environment),
        *_forced(environment),
        *_launcher(environment),
    ]
    yield from findings
    if any(f.status.value in ("fail", "warn", "unknown") for f in findings):
        return
    named = [v.name for v in environment.starting("NCCL_")]
    text = f"{len(named)} NCCL settings, none harmful: {', '.join(sorted(named))}" if named else "no NCCL settings"
    yield ok(NODE, text)


def _on(environment: Environment, name: str) -> bool:
    """NCCL's reading of a switch: any number but 0."""
    value = (environment.get(name) or "").strip()
    return value.lstrip("+-").isascii() and value.lstrip("+-").isdigit() and bool(value.strip("+-0"))


def _unset(name: str) -> tuple[Advice, ...]:
    return (Advice("Clear it where it is set (shell profile, image, job script, /etc/nccl.conf).", f"unset {name}"),)


def _shown(variable: Variable) -> Evidence:
    return Evidence("environment", f"{variable.name}={variable.value}")


def _switched_off(case: Case) -> Iterator[Finding]:
    environment = case.node.environment
    several = len(case.gpus) > 1
    level = environment.variable("NCCL_P2P_LEVEL")
    p2p = environment.variable("NCCL_P2P_DISABLE") if _on(environment, "NCCL_P2P_DISABLE") else None
    if level is not None and level.value.strip().upper() in ("LOC", "0"):
        p2p = p2p or level
    if p2p is not None and several:
        yield _p2p_off(case, p2p)
    shm = environment.variable("NCCL_SHM_DISABLE")
    if shm is not None and several and _on(environment, shm.name):
        yield warn(
            NODE,
            f"{shm.name}={shm.value} keeps NCCL from shared memory between processes of this node",
            "not set",
            _shown(shm),
            likely="where GPUs have no peer-to-peer their traffic then takes the network sockets",
            advice=_unset(shm.name),
        )
    ib = environment.variable("NCCL_IB_DISABLE")
    ports = known(case.node.network.rdma_ports) or ()
    active = sum("ACTIVE" in (known(p.state) or "").upper() for p in ports)
    if ib is not None and active and _on(environment, ib.name):
        yield warn(
            NODE,
            f"{ib.name}={ib.value} keeps NCCL from the {active} active RDMA ports",
            "0, or not set",
            _shown(ib),
            likely="traffic between nodes goes over TCP sockets instead",
            advice=_unset(ib.name),
        )


def _p2p_off(case: Case, variable: Variable) -> Finding:
    text = f"{variable.name}={variable.value} switches peer-to-peer between GPUs off"
    joined = [pair for pair in case.pairs if known(pair.nvlinks)]
    able = [pair for pair in case.pairs if known(pair.p2p_read) == "OK"]
    if joined:
        return fail(
            NODE,
            f"{text}, and with it the NVLinks between {len(joined)} pairs",
            "not set, where GPUs are joined by NVLink",
            _shown(variable),
            likely="NCCL falls back to host memory: an order of magnitude slower than NVLink",
            advice=_unset(variable.name),
        )
    if case.pairs and not able and all(not isinstance(p.p2p_read, Missing) for p in case.pairs):
        return ok(NODE, f"{text}; these GPUs have none, so it costs nothing", None, _shown(variable))
    return warn(
        NODE,
        text,
        "not set, where GPUs can reach each other",
        _shown(variable),
        likely="set as a way around a hang, which has its cause in IOMMU or ACS settings",
        advice=(*_unset(variable.name), Advice("If NCCL then hangs:", "gpudoctor check pcie.acs")),
    )


def _interfaces(case: Case) -> Iterator[Finding]:
    environment, network = case.node.environment, case.node.network
    names: list[str] | Missing
    if isinstance(network.interfaces, Missing):
        names = network.interfaces
    else:
        names = [interface.name for interface in network.interfaces]
    for variable_name, exact in (("NCCL_SOCKET_IFNAME", False), ("GLOO_SOCKET_IFNAME", True)):
        variable = environment.variable(variable_name)
        if variable is None or not variable.value.strip():
            continue
        if isinstance(names, Missing):
            yield unread(NODE, f"{variable_name}={variable.value}: network interfaces", names)
        elif not _selected(variable.value, names, exact):
            yield fail(
                NODE,
                f"{variable_name}={variable.value} fits no network interface of this node",
                f"one of {', '.join(names) or 'none: the node shows no interface'}",
                _shown(variable),
                likely="the name comes from another machine; init_process_group fails or hangs with it",
                advice=(Advice("Name an interface that exists.", "ip -brief link"), *_unset(variable_name)),
            )
    adapters = environment.variable("NCCL_IB_HCA")
    ports = network.rdma_ports
    if adapters is None or not adapters.value.strip() or isinstance(ports, Missing):
        return
    devices = [port.device for port in ports]
    if devices and not _selected(adapters.value, devices, False):
        yield warn(
            NODE,
            f"NCCL_IB_HCA={adapters.value} fits no RDMA adapter of this node",
            f"one of {', '.join(dict.fromkeys(devices))}",
            _shown(adapters),
            likely="the name comes from another machine; NCCL then uses TCP sockets between nodes",
            advice=(Advice("Name adapters that exist.", "ibstat -l"), *_unset("NCCL_IB_HCA")),
        )


def _selected(value: str, names: Iterable[str], exact: bool) -> list[str]:
    """The names that NCCL's list keeps: prefixes, `=` for whole names, `^` for all but these.

    Source: NCCL user guide, NCCL_SOCKET_IFNAME and NCCL_IB_HCA (there `device:port`). Gloo
    takes whole names only (`exact`).
    """
    text = value.strip()
    exclude = not exact and text.startswith("^")
    text = text[1:] if exclude else text
    whole = exact or text.startswith("=")
    text = text.removeprefix("=")
    items = [item.strip().partition(":")[0] for item in text.split(",") if item.strip()]
    hit = [n for n in names if any(n == item if whole else n.startswith(item) for item in items)]
    return [n for n in names if n not in hit] if exclude else hit


def _files(environment: Environment) -> Iterator[Finding]:
    for name, stops in (("NCCL_GRAPH_FILE", True), ("NCCL_TOPO_FILE", False)):
        variable = environment.variable(name)
        if variable is None or (variable.path_exists is not False and variable.value.strip()):
            continue
        judge = fail if stops else warn
        yield judge(
            NODE,
            f"{name}={variable.value} names no file that exists",
            "a file that exists, or not set",
            _shown(variable),
            likely="NCCL refuses to start without its graph file"
            if stops
            else "NCCL goes on without it: in a VM it then does not know how GPUs and adapters are wired",
            advice=_unset(name),
        )


def _left_on(environment: Environment) -> Iterator[Finding]:
    debug = environment.variable("NCCL_DEBUG")
    if debug is not None and debug.value.strip().upper() in ("INFO", "TRACE"):
        yield _costly(debug, "WARN, VERSION or not set", "debugging output left on: it floods logs and slows start-up")
    for name, cost in (
        ("CUDA_LAUNCH_BLOCKING", "every kernel launch waits for the GPU: computing and communication cannot overlap"),
        ("TORCH_NCCL_BLOCKING_WAIT", "collectives block the process, and no watchdog ends a hung one"),
    ):
        variable = environment.variable(name)
        if variable is not None and _on(environment, name):
            yield _costly(variable, "0, or not set", cost)
    detail = environment.variable("TORCH_DISTRIBUTED_DEBUG")
    if detail is not None and detail.value.strip().upper() == "DETAIL":
        yield _costly(detail, "OFF, INFO or not set", "every collective is checked against the other ranks first")
    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NCCL_PROFILER_PLUGIN"):
        variable = environment.variable(name)
        if variable is not None and variable.value.strip():
            yield _costly(variable, "not set outside profiling", "a profiler is loaded into every process")


def _forced(environment: Environment) -> Iterator[Finding]:
    for name, what in (("NCCL_ALGO", "algorithm"), ("NCCL_PROTO", "protocol")):
        variable = environment.variable(name)
        if variable is not None and variable.value.strip():
            cost = f"NCCL may not choose the {what} that is best for a message size"
            yield _costly(variable, "not set: NCCL chooses", cost)


def _costly(variable: Variable, expected: str, cost: str) -> Finding:
    found = f"{variable.name}={variable.value}: {cost}"
    return warn(
        NODE, found, expected, _shown(variable), likely="left over from debugging", advice=_unset(variable.name)
    )


def _launcher(environment: Environment) -> Iterator[Finding]:
    """torchrun's variables against each other; a set that some of them leave open only warns."""
    given = {name: value for name in _TORCHRUN if (value := environment.get(name)) is not None}
    evidence = tuple(Evidence("environment", f"{name}={value}") for name, value in given.items())
    advice = (
        Advice("Let the launcher set them,", "torchrun --nproc-per-node=gpu train.py"),
        Advice("and clear what a former run left behind.", f"unset {' '.join(given)}" if given else None),
    )

    def wrong(text: str, expected: str) -> Finding:
        return fail(
            NODE, text, expected, *evidence, likely="init_process_group would fail or wait forever", advice=advice
        )

    for rank_name, size_name in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        numbers: dict[str, int] = {}
        for name in (rank_name, size_name):
            value = given.get(name, "").strip()
            if value.isascii() and value.isdigit() and len(value) < 10:
                numbers[name] = int(value)
            elif name in given:
                yield wrong(f"{name}={given[name]} is not a number", "a number from 0")
        if len(numbers) == 2 and numbers[rank_name] >= numbers[size_name]:
            text = f"{rank_name}={numbers[rank_name]} with {size_name}={numbers[size_name]}"
            yield wrong(text, f"{rank_name} below {size_name}")
    rendezvous = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    absent = [name for name in rendezvous if name not in given]
    # a lone MASTER_ADDR or WORLD_SIZE is a site's default; RANK means a launcher was at work
    if "RANK" in given and absent and given.get("WORLD_SIZE", "").strip() != "1":
        yield warn(
            NODE,
            f"RANK is set, but not {', '.join(absent)}",
            "all four of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or none",
            *evidence,
            likely="a launcher's variables came through in part: init_process_group needs all four",
            advice=advice,
        )
