"""What Slurm and Kubernetes say of a node: `scontrol show node`, `sinfo`, `kubectl describe node`, `kubectl get node`.

No fact of the node itself is in these texts: what they find wrong is reported as theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from gpudoctor.facts.captures.reader import Block, Part, TextReader, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.reported import Loudness, Reported
from gpudoctor.statements.about import about

_MOST_NODES = 8
_RECORD = re.compile(
    r"NodeName=(?P<name>\S{1,253}) |\bGres=\S{0,60}?gpu(?::[A-Za-z][\w.-]{0,60})?:(?P<have>\d{1,3})(?=[,(\s]|$)"
    r"|\bCfgTRES=\S{0,300}?gres/gpu=(?P<give>\d{1,4})|\bState=(?P<state>\S{1,80})"
    r"|\bReason=(?P<reason>.{1,300}?)(?:\s*\[[^\]\s]{1,80}@[^\]]{1,40}\])?\s*$",
    re.MULTILINE,
)
# states in which a scheduler gives a node no jobs; sinfo's * behind any of them: it does not respond
_AWAY = re.compile(r"(?:down|fail|err|drain|drng|inval|not_responding|no_respond|unk)[a-z_]*[*$@+~#!%-]{0,2}|[a-z]+\*")
# a reason that is the node's own fault: a GPU, or a container runtime without which no pod starts
_BROKEN = re.compile(r"gpu|\bgres|xid|nvidia|\bruntime is down", re.IGNORECASE)
# its scheduler no longer hears from it, or says that it is not ready; nobody has drained or cordoned it
_NOT_READY = re.compile(
    r"unreachable|\bUnknown\b|\bReady False|^(?:NotReady|not-ready|out-of-service)|^(?:network-un|NetworkUn)available"
    r"|not_respond|no_respond|\*|\b(?:unk|fail|err|inval|down(?! or drained))"
)
# Slurm runs no job there; with another word or letter a node is off, starts or is reserved, as somebody planned
_DOWN = re.compile(r"(?:down|fail|failing|error)\*?(?:\+(?:drain|not_respond|no_respond)[a-z_]*\*?)*")
_NO_ANSWER = re.compile(r"not responding", re.IGNORECASE)
_CONDITION = re.compile(r"\s+(?P<type>[A-Z]\w{2,60})\s+(?P<status>True|False|Unknown)\s+(?P<reason>.*)")
# "KernelReady"; most others are problems: "MemoryPressure", "NetworkUnavailable", "GpuNotReady"
_CONDITION_OF_HEALTH = re.compile(r"(?<!Not)(?:Ready|Healthy|Available)$")
_SECTION = re.compile(r'\s*"?(allocatable|capacity|conditions)"?:\s*(?:[{\[]\s*)?$', re.IGNORECASE)
# a key of a condition in YAML or JSON
_KEY = re.compile(r'\s*(?:- )?"?(type|status|reason)"?: *"?([\w./-]{1,253})"?,?\s*$')
# of the taints that Kubernetes itself sets, those of a node that runs no pod
_TAINT = re.compile(r"(?:Taints:)?\s+node\.kubernetes\.io/(unreachable|not-ready|out-of-service|network-unavailable)\b")
# of the addresses of a node, in YAML or JSON, and as describe prints it
_HOSTNAME = re.compile(r'address"?: "?([\w.-]{1,253})"?,?\s+"?type"?: "?Hostname\b|\n\s+Hostname:\s+([\w.-]{1,253})')
_NODES = r"NAME\s+STATUS\s+ROLES\s+AGE\b"
_NODE_ROW = re.compile(r"(?:node/)?([\w.-]{1,253})\s+((?:NotReady|Ready|Unknown)(?:,\w{2,40})*)\s+\S")
_QUANTITY = re.compile(r'\s*"?nvidia\.com/gpu"?: *"?(\d{1,4})"?')
_SINFO = re.compile(r"(?:PARTITION\s.*\bSTATE\b|NODELIST\s.*\bSTATE\b|REASON\s.*\bNODELIST\b)")
_STATES = (
    r"(?:idle|alloc|mix|drain|drng|down|fail|maint|resv|reserved|unk|comp|boot|inval|planned|plnd)"
    r"[a-z]*[*~#!%$@^+-]{0,2}"
)
# sinfo -o "%D %t %N" and a row of sinfo -R, pasted without their headers; the latter with Slurm's own reasons
_WITHOUT_HEADER = re.compile(rf"\s*\d{{1,6}}\s+{_STATES}\s+[\w.-]{{1,100}}\[[\d,-]{{1,500}}\]\s*$")
_OF_SLURM = re.compile(
    r"(?:Kill task failed|Not responding|Node unexpectedly rebooted|Low RealMemory|Prolog error|Epilog error"
    r"|gres/gpu count)\b"
)
_REASON_ROW = re.compile(
    rf"{_OF_SLURM.pattern}.{{0,120}}?\s[\w.-]{{1,40}}\s+\d{{4}}-\d\d-\d\dT[\d:]{{8}}\s+[\w.,\[\]-]{{1,300}}\s*$"
)
_POD = re.compile(
    r"(?:[\w.-]{1,100}\s+)?(?:pod/)?(?P<pod>[\w.-]{1,253})\s+(?P<ready>\d{1,3})/(?P<containers>\d{1,3})"
    r"\s+(?P<status>[A-Z]\S{2,60})\s(?:\s*(?P<restarts>\d{1,6})(?:\s+\([^)]{1,40}\))?\s+(?P<age>(?:\d{1,6}[smhdy])+))?"
)
# a user's pod may have "gpu" in its name, too
_GPU_SOFTWARE = re.compile(
    r"nvidia-|gpu-operator|gpu-feature-discovery|dcgm|.*nvidia-(?:d|container-toolkit|operator|mig-manager)"
)
_POD_WAITS = ("Init:0", "Pending", "ContainerCreating", "PodInitializing", "Running")
_YOUNG = re.compile(r"\d{1,6}s|\d(?:m\d{1,2}s|m)")  # less than ten minutes: it still loads images, or starts
_POD_WAITING = re.compile(
    r"\s+Reason:\s+(CrashLoopBackOff|ImagePullBackOff|ErrImagePull|CreateContainer\w*Error|RunContainerError)"
)
_CONTAINER = re.compile(r"  ([\w.-]{1,100}):\s*$")


def _out_of_service(tool: str, node: str, state: str, reason: str, *, of_many: bool = False) -> Reported:
    """A node that gets no jobs: an error if it is down or its reason says so, unknown if it is not ready or silent.

    By whatever word a scheduler says so. `of_many`: the text shows nodes in service too, and does not say which
    one is judged. Whom a person drained or cordoned may be fine: a warning.
    """
    unread = _NOT_READY.search(state) or _NO_ANSWER.search(reason)
    # a person who took it out, for whatever reason, has written that
    down = not of_many and _DOWN.fullmatch(state) and (not reason or _OF_SLURM.match(reason))
    broken = _BROKEN.search(reason) or down
    loudness: Loudness = "error" if broken else "unread" if unread else "warning"
    reported = from_tool(tool, f"{node} is {state}: {reason or 'no reason given'}", loudness)
    return replace(reported, gpu=about(reason).gpu_index)  # a node may be called like a GPU


def _verdict(tool: str, configured: list[str], given: list[str], away: list[Reported], node: str) -> Part:
    """GPUs of a node that are not given out, and why it gets no jobs; no counts of several nodes in one text."""
    if len(configured) > 1 or len(given) > 1:
        note = f"{tool}: several nodes in one text: show the one that is judged"
        return Part(notes=(note,), reported=tuple(away[:_MOST_NODES]))
    counted: list[Reported] = []
    if configured and given:
        fewer = int(given[0]) < int(configured[0])
        text = f"{given[0]} of {configured[0]} GPUs of {node} are given out"
        counted = [replace(from_tool(tool, text, "error" if fewer else "ok"), gpu=None)] if fewer or not away else []
    return Part(reported=(*counted, *away[:_MOST_NODES]))


@text_reader("scontrol show node", r"NodeName=\S{1,253} ", r"NodeName=|\s+[A-Z]\w{1,30}=")
def read_scontrol(block: Block) -> Part:
    """`scontrol show node NAME`: GPUs that are not given out, and a node that gets no jobs."""
    fields: dict[str, list[str]] = {"name": [], "have": [], "give": [], "state": [], "reason": []}
    for found in _RECORD.finditer(block.text):
        fields[found.lastgroup or ""].append(found[found.lastgroup or ""])
    nodes = zip(fields["name"], fields["state"], [*fields["reason"], *[""] * len(fields["name"])], strict=False)
    away = [
        _out_of_service("scontrol", name, state.lower(), reason)
        for name, state, reason in nodes
        if any(_AWAY.fullmatch(word) for word in re.findall(r"[a-z_]+\*?", state.lower()))
    ]
    return _verdict("scontrol", fields["have"], fields["give"], away, "".join(fields["name"][:1]) or "the node")


@text_reader(
    "sinfo",
    lambda line: _SINFO.match(line) or _WITHOUT_HEADER.match(line) or _REASON_ROW.match(line),
    # a row has a state after the number of nodes, or ends in the list of nodes, behind a time or a wide gap
    rf"\S+\s+(?:(?:up|inact|down|drain)\s+\S+\s+)?\d{{1,6}}\s+(?:\S+\s+)?{_STATES}(?:\s|$)"
    r"|\S.*(?:\s\d{4}-\d\d-\d\dT[\d:]{8}\s+\S+|\S {2,}[A-Za-z][\w.-]{0,60}(?:\d|\[[\d,-]{1,200}\]))\s*$",
)
def read_sinfo(block: Block) -> Part:
    """`sinfo` in its usual forms: the nodes that get no jobs, with the reason if there is one."""
    header: list[str] = []
    away: list[tuple[str, str, str]] = []  # nodes, state, reason
    serving = False
    for line in block.lines:
        if _SINFO.match(line):
            header = line.split()
            continue
        if not header:
            reasons = _REASON_ROW.match(line) is not None
            header = ["REASON", "USER", "TIMESTAMP", "NODELIST"] if reasons else ["NODES", "STATE", "NODELIST"]
        cells = line.split()
        # a reason contains spaces: the columns after it are counted from the right
        if header[0] == "REASON":
            cells = [" ".join(cells[: 1 - len(header)]), *cells[1 - len(header) :]]
        row = dict(zip(header, cells, strict=False))
        # sinfo -R lists no other nodes
        state = row.get("STATE", "down or drained" if header[0] == "REASON" else "").lower()
        if row.get("NODES") == "0":
            continue
        if header[0] == "REASON" or _AWAY.fullmatch(state):
            reason = row.get("REASON", "")
            away.append((row.get("NODELIST", "a node"), state, "" if reason == "none" else reason))
        else:
            serving = serving or state.startswith(("idle", "alloc", "mix", "comp"))
    if away or header[:1] == ["REASON"]:
        return Part(reported=tuple(_out_of_service("sinfo", *row, of_many=serving) for row in away[:_MOST_NODES]))
    return Part(notes=("sinfo: no node is out of service",))


@text_reader(
    "kubectl describe node",
    r"(?:Roles|Unschedulable|ProviderID|Capacity|Allocatable|Taints):(?:\s|$)",
    r"(?:Name|Labels|Annotations|CreationTimestamp|Lease|Conditions|Addresses|System Info|PodCIDRs?"
    r"|Non-terminated Pods|Allocated resources|Events):(?:\s|$)|\s+\S",
    after=r"kubectl describe nodes?\b",
)
def read_kubectl(block: Block) -> Part:
    """`kubectl describe node NAME`, `kubectl get node -o yaml`: GPUs that are not given out, and bad conditions."""
    section, name = "", "the node"
    counts: dict[str, list[str]] = {"capacity": [], "allocatable": []}
    cordon: list[Reported] = []
    conditions: list[tuple[str, str]] = []  # name of the node, line
    taints: list[Reported] = []
    for line in block.lines:
        if found := _SECTION.match(line):
            section = found[1].lower()
        elif not line[:1].isspace():
            section = line.partition(":")[0].lower()
            name = line.partition(":")[2].strip() or name if section == "name" else name
            if section == "unschedulable" and "true" in line:
                cordon.append(_out_of_service("kubectl", name, "unschedulable", ""))
        elif section in counts and (gpus := _QUANTITY.match(line)):
            counts[section].append(gpus[1])
        elif section == "conditions":
            conditions.append((name, line))
        # every pod tolerates such taints: its description, which may follow, lists them as Tolerations
        if section == "taints" and (taint := _TAINT.match(line)):
            taints.append(_out_of_service("kubectl", name, taint[1], "its taint keeps pods away"))
    bad = list(_bad_conditions(conditions))
    # a taint follows a condition, and says no more than that; a cordon or one that only warns is another thing
    if any(each.loudness != "warning" for each in bad):
        taints = []
    if name == "the node" and (host := _HOSTNAME.search(block.text)):
        name = host[1] or host[2]
    return _verdict("kubectl", counts["capacity"], counts["allocatable"], [*taints, *bad, *cordon], name)


def _bad_conditions(lines: Iterable[tuple[str, str]]) -> Iterator[Reported]:
    """Of conditions, each line with its node's name, those that are bad: rows of describe, or keys in YAML or JSON."""
    keys: dict[str, str] = {}  # of the condition that is being read
    for name, line in lines:
        row = _CONDITION.match(line)
        condition = row.groupdict() if row else {}
        if key := _KEY.match(line):
            keys[key[1]] = key[2]
            if "type" in keys and "status" in keys:
                condition, keys = keys, {}
        if condition and condition["status"] != ("True" if _CONDITION_OF_HEALTH.search(condition["type"]) else "False"):
            reason = " ".join(condition.get("reason", "").split())[-120:]
            yield _out_of_service("kubectl", name, f"{condition['type']} {condition['status']}", reason)


@text_reader("kubectl get nodes", _NODES, _NODE_ROW.pattern, after=r"kubectl get (?:no|nodes?)\b(?!.* -o)")
def read_nodes(block: Block) -> Part:
    """`kubectl get nodes`: those that get no pods. NotReady may be a node that is silent: the list does not say."""
    rows = (row.groups() for row in block.matches(_NODE_ROW))
    away = [_out_of_service("kubectl", name, status, "") for name, status in rows if status != "Ready"]
    return Part(reported=tuple(away[:_MOST_NODES])) if away else Part(notes=("kubectl: all nodes are ready",))


@text_reader(
    "kubectl get pods",
    r"(?:NAMESPACE\s+)?NAME\s+READY\s+STATUS\s+RESTARTS\s+AGE\b"
    r"|(?:[\w.-]{1,100}\s+)?(?:pod/)?(?:nvidia|gpu|dcgm)[\w.-]{1,200}\s+\d{1,3}/\d{1,3}\s+[A-Z]\w",
    _POD.pattern,
)
def read_pods(block: Block) -> Part:
    """`kubectl get pods` and `kubectl describe pod`: pods of GPU software that do not run, or are not ready."""
    bad: list[Reported] = []
    pod = container = ""
    for line in block.lines:
        if (row := _POD.match(line)) and _GPU_SOFTWARE.match(row["pod"]) and not _is_well(row):
            waits = row["status"].startswith(_POD_WAITS)
            text = f"{row['pod']}: {row['ready']}/{row['containers']} {row['status']}"
            bad.append(from_tool("kubectl", text, "warning" if waits else "error"))
        elif line.startswith("Name:"):
            pod = line.partition(":")[2].strip()
        elif found := _CONTAINER.match(line):
            container = found[1]
        elif (reason := _POD_WAITING.match(line)) and _GPU_SOFTWARE.match(pod):
            bad.append(from_tool("kubectl", f"{pod}: {container} waits in {reason[1]}"))
    bad.sort(key=lambda each: each.loudness == "warning")
    return Part(reported=tuple(bad[:_MOST_NODES])) if bad else Part(notes=("kubectl: no pod of GPU software fails",))


def _is_well(pod: re.Match[str]) -> bool:
    running = pod["status"] == "Running" and int(pod["ready"]) >= int(pod["containers"])
    if running or pod["status"] in ("Completed", "Succeeded", "Terminating"):
        return True
    young = pod["restarts"] == "0" and _YOUNG.fullmatch(pod["age"] or "") is not None
    return young and pod["status"].startswith(_POD_WAITS)


SCHEDULER_READERS: tuple[TextReader, ...] = (
    *(read_scontrol, read_sinfo, read_kubectl, read_pods),
    text_reader(
        "kubectl describe pod",
        r"Name:\s+nvidia-[\w.-]{1,253}$|Controlled By:|(?:Init )?Containers:$",
        r"(?:IPs?|[A-Z][a-z][\w-]{1,20}(?: [A-Z]\w{1,20}){0,3}):(?:\s|$)|\s+\S",
        after=r"kubectl describe pods?\b",
    )(read_pods.read),
    text_reader(
        "kubectl get node",
        r'\s*"?(?:allocatable|capacity|addresses)"?:\s*(?:[{\[]\s*)?$',
        r'\s*(?:- )?"?[\w./-]{1,100}"?:(?: *"?[\w./:-]{1,253}"?,?| *[{\[])?\s*$|\s*[{\[]?[}\]]?,?\s*$',
    )(read_kubectl.read),
    read_nodes,
)
