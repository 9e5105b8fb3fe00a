"""Find the words in a node's facts that identify a person, a machine or a part, and remove them from texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from gpudoctor.facts.kernel_log.messages import HARD_WORDS
from gpudoctor.facts.kernel_log.records import read_line
from gpudoctor.facts.model.gpu import Gpu, system_program
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node, Variable
from gpudoctor.facts.redaction.shapes import REDACTED, is_public, shapes_taken_out
from gpudoctor.lazy import lazy_pattern

_USER = lazy_pattern(r"/(?:home|Users)/([^/\s:;,'\"]+)")
_CARD = lazy_pattern(r"\b((?:en|wl|ww|ib)x)([0-9a-f]{12})\b")
_BETWEEN_NAMES = lazy_pattern(r"[\s\[\]<>|{}\"',;=]+")
_LIKE_A_NAME = lazy_pattern(r"[A-Za-z].*\d|\d.*[A-Za-z]|[A-Za-z0-9][.-][A-Za-z]")
_PLACE_IN_FILE = lazy_pattern(r":(?:\d{1,9}:?)?$")
# log words that identify nobody: times, time zones, callers, facilities, logging programs
_OF_LOGS = lazy_pattern(
    r"[\d:.,TZ+-]*|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\d{0,2}|[A-Z]{3,5}"
    r"|[TC]\d+|-|stdout|stderr|[FP]|kernel|kern|(?:kern\.)?(?:emerg|alert|crit|err|warn|notice|info|debug)|syslog(?:-ng|d)?"
    r"|imklog|rsyslogd?|meta|sequenceId|(?:kern|dmesg|syslog|messages)[.-]?(?:log|txt|out)?"
)
# the host name that syslog and journalctl put before the kernel's message
_LOG_HOST = lazy_pattern(r"^((?:\w{3} +\d+ [\d:.]+|\d{4}-\d\d-\d\dT\S+|\[ *[\d.]+\]) )(\S+)(?= kernel: )")
# the nodes and pods in what slurmctld, kubectl and sinfo ("down* n7; fail c[1-3]") report
_OF_SCHEDULER = lazy_pattern(r"\bnode (\S{1,253}) state (?:to|set) ")
_SCHEDULERS = ("scontrol", "sinfo", "kubectl")
_FIRST_NAME = lazy_pattern(r"[a-zA-Z][\w.\[\],-]{0,252}")
_PUBLIC_POD = lazy_pattern(
    r"(?:nvidia-(?:driver|device-plugin|container-toolkit|operator-validator|cuda-validator|mig-manager|dcgm)"
    r"|gpu-operator|gpu-feature-discovery|dcgm-exporter)(?:-(?:daemonset|exporter))?(?:-[a-z0-9]{5,10}){1,2}$"
)
_HOST = lazy_pattern(r"([A-Za-z][A-Za-z0-9-]{2,}?)\d+")
_HOSTS_OF_LIST = lazy_pattern(r"([A-Za-z][A-Za-z0-9-]{1,}?)\d*\[[\d,-]+\]")
_DOMAIN = lazy_pattern(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_FILE_LIKE = lazy_pattern(r".*[./_\d].*")
_COMMON_PROGRAM = lazy_pattern(r"python[\d.]*|bash|sh|java|ray|node|torchrun|srun|mpirun|--?")
_HARMLESS = {"root", "localhost", "none", "true", "false", "ubuntu", REDACTED}  # they identify nobody
_SYSTEM_FOLDERS = frozenset(
    ("/", "/home", "/root", "/tmp", "/var", "/var/tmp", "/dev/shm", "/usr", "/opt", "/srv", "/mnt", "/media", "/boot")
)
_SERVER = lazy_pattern(
    r"(?://)?\[?([A-Za-z][\w.-]{0,253})(?:@\w+)?[:/]"
)  # filer:/export, 10.0.0.1@tcp:/fs, //filer/share
# mount sources that identify nobody; /dev/mapper/vg-lv is not one, because a user chose that name
_PLAIN_SOURCE = lazy_pattern(
    r"|/dev/[\w-]+|none|tmpfs|shm|overlay|rootfs|fuse|systemd-1|mountpoint-s3|s3fs|gcsfuse|JuiceFS|blobfuse2|goofys"
)
_PUBLIC_OPTIONS = frozenset((
    "alloc_mode", "cache", "compress", "compress-force", "data", "discard", "errors", "fsync_mode", "iocharset",
    "local_lock", "lookupcache", "mountproto", "nfsvers", "proto", "redirect_dir", "sec", "space_cache", "vers", "xino",
))  # fmt: skip
_PLAIN_VALUE = lazy_pattern(r"[\d.]{1,12}[kKmMgGtT%]?|on|off|none|yes|no|<hidden>")
_LONGEST_HOST = 1024  # also for a list of hosts; longer values are something else, and slow to match
_SHORTEST_SECRET = 4
_TEXTS_KEPT = 4096
_NOTHING = lazy_pattern(r"(?!)")


def hidden_variables(node: Node) -> list[Variable]:
    """The variables whose values may be private: all that `is_public` does not recognise."""
    interfaces = [interface.name for interface in known(node.network.interfaces) or ()]
    devices = [*interfaces, *(port.device for port in known(node.network.rdma_ports) or ())]
    held = known(node.environment.variables) or ()
    return [variable for variable in held if not is_public(variable.name, variable.value, devices)]


def is_public_source(source: str, fs_type: str) -> bool:
    """Whether a mount source identifies nobody: a disk, or the constant source of its file system."""
    return source == fs_type or _PLAIN_SOURCE.fullmatch(source) is not None


class PrivateNames:
    """Removes a node's private words, and anything that looks like an address or a path, from texts about the node."""

    def __init__(self, node: Node) -> None:
        hosts = [word for word in _hosts_of(node) if len(word) <= _LONGEST_HOST and not _is_harmless(word)]
        parts = [*hosts, *(host.partition(".")[0] for host in hosts), *_words_of(node)]
        self._stand_ins = {word: REDACTED for word in parts if not _is_harmless(word)}
        for place, name in enumerate(node.source.files, 1):
            self._stand_ins[name] = f"dump-{place}"
        self._settings = {f"{v.name}={v.value}": f"{v.name}={REDACTED}" for v in hidden_variables(node)}
        self._settings |= dict(_of_mounts(node))
        self._lowered = {word: word.lower() for word in self._stand_ins}
        self._hosts = _hosts_like(hosts)
        self._cards: dict[str, str] = {}
        self.taken_out = lru_cache(_TEXTS_KEPT)(self._taken_out)  # four of five texts of a report were there before

    def add(self, word: str, stand_in: str) -> None:
        self._stand_ins[word] = stand_in
        self._lowered[word] = word.lower()
        self.taken_out.cache_clear()

    def _taken_out(self, text: str) -> str:
        for setting, stand_in in self._settings.items():
            text = text.replace(setting, stand_in)
        text = shapes_taken_out(_LOG_HOST.sub(rf"\1{REDACTED}", text))
        text = self.cards_taken_out(text)
        return self._hosts.sub(REDACTED, self._own_words_replaced(text))

    def cards_taken_out(self, text: str) -> str:
        """The text with stand-ins for network interfaces whose name contains their hardware address."""
        return _CARD.sub(self._card, text)

    def _own_words_replaced(self, text: str) -> str:
        # most texts contain none of the words, and a pattern of thousands of words is slow
        lowered = text.lower()
        held = [word for word, small in self._lowered.items() if small in lowered]
        if not held:
            return text
        # a word with a digit is not a dictionary word, so it is replaced in any case
        message = "|".join(
            f"(?i:{re.escape(word)})" if re.search(r"\d", word) else re.escape(word)
            for word in sorted(held, key=len, reverse=True)
        )
        pattern = re.compile(rf"(?<![A-Za-z0-9_])(?:{message})(?![A-Za-z0-9_])")
        return pattern.sub(lambda match: self._stand_ins.get(match.group(), REDACTED), text)

    def _card(self, match: re.Match[str]) -> str:
        kind, address = match[1], match[2]
        return f"{kind}{self._cards.setdefault(address, f'{len(self._cards) + 1:012x}')}"


def _is_harmless(word: str) -> bool:
    # a serial has many digits; a shorter number may be anything
    return not word.strip() or word.lower() in _HARMLESS or (word.isdecimal() and len(word) <= 6)


def _of_mounts(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the parts of mount table lines that identify shares, buckets and users, with their replacements."""
    for mount in known(node.storage.mounts) or ():
        if not is_public_source(mount.source, mount.fs_type):
            yield f"{mount.source} on {mount.point}", f"{REDACTED} on {mount.point}"
        for option in mount.options:
            name, _, value = option.partition("=")
            if value and name not in _PUBLIC_OPTIONS and not _PLAIN_VALUE.fullmatch(value):
                yield option, f"{name}={REDACTED}"


def _words_of_gpu(gpu: Gpu) -> Iterator[str]:
    yield known(gpu.serial) or ""
    for process in known(gpu.processes) or ():
        yield known(process.user) or ""
        name = known(process.name) or ""
        if system_program(name) is None:
            yield from _words_of_command(name)


def _words_of(node: Node) -> Iterator[str]:
    for gpu in node.gpus:
        yield from _words_of_gpu(gpu)
    yield known(node.software.torch_location) or ""
    if node.source.kind != "simulated":
        yield node.source.name
    for variable in known(node.environment.variables) or ():
        yield from _USER.findall(variable.value)
    for variable in hidden_variables(node):
        # a plain word may occur in any text: it is replaced only next to its variable's name
        for word in {variable.value, *re.split(r"[\s,;:=]+", variable.value)}:
            if len(word) >= _SHORTEST_SECRET and _FILE_LIKE.fullmatch(word) and not is_public("NCCL_ANY", word, ()):
                yield word
    for event in known(node.kernel_log.events) or ():
        yield from _USER.findall(event.text)
    for mount in known(node.storage.mounts) or ():
        for path in (mount.point, *(path.path for path in mount.paths)):
            yield from _USER.findall(path)
            # a folder directly below / does not match the path patterns, and may have a private name
            yield "" if path in _SYSTEM_FOLDERS else path


def _hosts_of(node: Node) -> Iterator[str]:
    yield known(node.host.hostname) or ""
    yield from _servers_of(node)
    for variable in known(node.environment.variables) or ():
        if re.search("NODELIST|NODENAME|ADDR|HOST|COMM_ID", variable.name):
            # a list looks like hopper[17-24,30],login1; an address may have a port
            yield from (host.partition(":")[0] for host in re.split(r",(?![^\[]*\])", variable.value))
    for event in known(node.kernel_log.events) or ():
        yield from _names_before_message(event.text)
    yield from _hosts_of_schedulers(node)


def _servers_of(node: Node) -> Iterator[str]:
    """The servers of network file systems, by the mounts and by the kernel log."""
    for mount in known(node.storage.mounts) or ():
        if mount.storage_class in ("network", "parallel") and (match := _SERVER.match(mount.source)):
            yield match[1]
    for event in known(node.kernel_log.host_events) or ():
        if event.kind.startswith("nfs"):
            yield event.device or ""


def _hosts_of_schedulers(node: Node) -> Iterator[str]:
    for text in (*node.source.notes, *(each.text for each in node.reported)):
        yield from _OF_SCHEDULER.findall(text)
    for each in node.reported:
        # what a scheduler says begins with the name of a node, or of a pod
        named = _FIRST_NAME.match(each.text) if each.said_by in _SCHEDULERS else None
        if named is not None and not _PUBLIC_POD.match(named[0]):
            yield named[0]


def _names_before_message(line: str) -> Iterator[str]:
    """Yield the hosts, pods, containers and files before the kernel's message in a log line, without timestamps."""
    message = read_line(line).message
    hard = HARD_WORDS.search(message)
    # an unknown prefix may put any word before the driver's message
    begin = hard.start() if hard is not None else 0
    before = line[: len(line) - len(message) + begin]
    for word in _BETWEEN_NAMES.split(before):
        name = _PLACE_IN_FILE.sub("", word)
        if name.startswith("/") or _OF_LOGS.fullmatch(name):
            continue
        if _LIKE_A_NAME.search(name) or (len(name) > 2 and not begin and not name.isdecimal()):
            yield name


def _words_of_command(command: str) -> Iterator[str]:
    """Yield the command line, and the words in it that are names of the user's files."""
    if not _COMMON_PROGRAM.fullmatch(command.rpartition("/")[2]):
        yield command
    for word in command.split():
        name = word.rpartition("/")[2]
        if len(name) > 3 and _FILE_LIKE.fullmatch(word) and not _COMMON_PROGRAM.fullmatch(name):
            yield name


def _hosts_like(hosts: list[str]) -> re.Pattern[str]:
    """A pattern for similar hosts and hosts in the same domain: `hopper18` if `hopper17.lab.example.org` is known."""
    patterns: set[str] = set()
    for name in hosts:
        host, _, domain = name.partition(".")
        if match := _HOSTS_OF_LIST.match(name) or _HOST.fullmatch(host):
            patterns.add(rf"{re.escape(match[1])}\d+")
        if _DOMAIN.fullmatch(domain):
            patterns.add(rf"(?:[\w-]{{1,63}}\.){{0,8}}{re.escape(domain)}")
    return re.compile(rf"(?i)(?<![\w-])(?:{'|'.join(sorted(patterns))})(?![\w-])") if patterns else _NOTHING
