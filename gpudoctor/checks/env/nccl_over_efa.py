"""What NCCL needs for AWS's Elastic Fabric Adapters: its libfabric plugin, and no setting that disables it."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, ok, skip, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.env.settings import bad, shown
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Environment, NcclNetPlugin, Variable

_TCP = "NCCL goes on over TCP sockets between nodes, without a message: a small part of the adapters' rate"
# NCCL user guide, NCCL_NET: NCCL's own networks; plugins have other names
OWN_NETWORKS = ("ib", "socket")


def efa_findings(case: Case) -> Iterator[Finding]:
    """Warn if NCCL cannot use the active EFA adapters of this node; no findings on a node without any."""
    ports = [port for port in known(case.node.network.rdma_ports) or () if port.is_efa]
    active = [port for port in ports if port.is_active]
    if not active:
        return
    adapters = f"the {len(active)} EFA adapters" if len(active) > 1 else f"the EFA adapter {active[0].device}"
    settings = list(_settings(case.node.environment, adapters))
    yield from settings or _plugin(case, adapters)


def _settings(environment: Environment, adapters: str) -> Iterator[Finding]:
    for name, expected, turns_away in (
        ("NCCL_NET", "not set, or the plugin's name", lambda text: text.lower() in OWN_NETWORKS),
        ("NCCL_NET_PLUGIN", "not set, or the plugin for libfabric", lambda text: text.lower() == "none"),
        ("FI_PROVIDER", "efa, or not set", _names_no_efa),
    ):
        variable = environment.variable(name)
        if variable is not None and variable.value.strip() and turns_away(variable.value.strip()):
            yield bad(warn, variable, f" keeps NCCL from {adapters}", expected, _TCP)


def _names_no_efa(text: str) -> bool:
    """Whether libfabric's provider filter (fi_fabric(7)) excludes efa: a list, or with ^ all but that list."""
    names = [name.strip().lower() for name in text.removeprefix("^").split(",")]
    return ("efa" in names) if text.startswith("^") else ("efa" not in names)


def _plugin(case: Case, adapters: str) -> Iterator[Finding]:
    """Findings on the plugin, only if torch with CUDA is installed here: jobs in containers bring their own."""
    software = case.node.software
    if isinstance(software.torch, Missing) or software.torch_cuda is None:
        return
    plugins = software.nccl_net_plugins
    if isinstance(plugins, Missing):
        if plugins.kind in ("failed", "denied"):
            yield unread(NODE, "NCCL's network plugins", plugins)
        return
    setting = case.node.environment.variable("NCCL_NET_PLUGIN")
    if setting is not None and setting.value == "redacted":
        yield skip(NODE, f"NCCL's plugin for {adapters}: NCCL_NET_PLUGIN is hidden in these facts")
        return
    taken = _taken(plugins, setting.value.strip() if setting is not None else "")
    if taken is not None and isinstance(taken.libfabric, Missing):
        yield unread(NODE, f"NCCL's network plugin {taken.path}", taken.libfabric)
    elif taken is not None and taken.libfabric:
        yield ok(NODE, f"NCCL finds its plugin for {adapters}: {taken.path}", None, Evidence("ld.so", taken.path))
    else:
        yield _none_for_efa(adapters, taken, [p.path for p in plugins if p.libfabric is True], setting)


def _taken(plugins: tuple[NcclNetPlugin, ...], setting: str) -> NcclNetPlugin | None:
    """The plugin that NCCL would load: NCCL_NET_PLUGIN is a path, a name, or the NAME in libnccl-net-NAME.so."""
    expected = (setting, f"libnccl-net-{setting}.so") if setting else ("libnccl-net.so",)
    return next((p for p in plugins if p.path == setting or p.path.rpartition("/")[2] in expected), None)


def _none_for_efa(adapters: str, taken: NcclNetPlugin | None, others: list[str], setting: Variable | None) -> Finding:
    if taken is not None:
        text = f"the plugin that NCCL takes has no use for {adapters}: {taken.path}"
    elif setting is not None and setting.value.strip():
        text = f"NCCL cannot use {adapters}: NCCL_NET_PLUGIN={setting.value} is not found"
    else:
        text = f"NCCL cannot use {adapters}: it has no plugin for them"
    seen = taken.path if taken is not None else ", ".join(others) or "no libnccl-net.so"
    steps = [
        Advice(
            "Installed, and not found? Show the loader where it is.",
            "export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:$LD_LIBRARY_PATH",
        ),
        Advice("Not installed: AWS's EFA installer brings it; in a container, install it in the image."),
    ]
    if others:
        steps = [Advice("Name the plugin that is there.", f"export NCCL_NET_PLUGIN={others[0]}")]
    return warn(
        NODE,
        text,
        "aws-ofi-nccl's libnccl-net.so, found by the dynamic loader",
        Evidence("LD_LIBRARY_PATH, /etc/ld.so.cache", seen),
        *([shown(setting)] if setting is not None else []),
        likely=_TCP,
        advice=(
            *steps,
            Advice("See which network NCCL takes: it says NET/OFI.", "NCCL_DEBUG=INFO torchrun ... 2>&1 | grep NET/"),
        ),
    )
