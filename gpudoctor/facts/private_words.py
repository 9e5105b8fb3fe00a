"""The words of a node that name a person, a machine or a part, and what such words look like anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.facts.gpu import system_program
from gpudoctor.facts.missing import known
from gpudoctor.facts.node import Node

REDACTED = "redacted"
# a number with leading zeros (a VBIOS version) or with a fifth part is no address
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_GROUPS = r"[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4})"
_ADDRESSES = (
    re.compile(
        r"(?<![\w:.])(?:[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,19}|[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3})(?![\w:.])"
    ),
    re.compile(rf"(?<![\w:.])(?:{_GROUPS}{{7}}|{_GROUPS}{{0,6}}::(?:{_GROUPS}{{0,6}})?)(?![\w:.])"),
    re.compile(rf"(?<![\d.]){_OCTET}(?:\.{_OCTET}){{3}}(?!\.?\d)"),
)
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
# a cloud's machine, disk, network card; and the host name that AWS makes of an address
_CLOUD = re.compile(r"(?<![\w-])(?:(?:i|vol|eni|vpc|subnet|ami)-[0-9a-f]{8,17}|ip(?:-\d{1,3}){4})(?![\w-])")
_USER = re.compile(r"/(?:home|Users)/([^/\s:;,'\"]+)")
_CARD = re.compile(r"\b((?:en|wl|ww|ib)x)([0-9a-f]{12})\b")
# where a distribution and the kernel put things; any other place is somebody's
_PATH = re.compile(
    r"(?<![\w./<])/(?!(?:usr|etc|proc|sys|dev|lib|lib64|bin|sbin|boot|run|var/log)/)[\w~@%+-][\w.~@%+-]*"
    r"(?:/[\w.~@%+=-]+)+"
)
_LIBRARY = re.compile(r".*/(lib[\w+-]+\.so[\d.]*)")
_PROCESS = re.compile(r"\b((?:pid|name|comm)=)('[^']*'|[^,]*)")
# the host name that syslog and journalctl put before the kernel's line
_LOG_HOST = re.compile(r"^((?:\w{3} +\d+ [\d:.]+|\d{4}-\d\d-\d\dT\S+|\[ *[\d.]+\]) )(\S+)(?= kernel: )")
_NAMING_VARIABLES = re.compile(
    r"SLURM.*(NODE(LIST|NAME)|USER|ACCOUNT|HOST|NAME|DIR|ADDR|PARTITION)|MASTER_ADDR|HOSTNAME|USER|.*_FILE|.*_PATH"
    r"|.*PLUGIN|.*_DIR|.*_DIRECTORY|.*_LOGS_SPECS|.*HOSTID|TORCHELASTIC_RUN_ID"
)
_HOST = re.compile(r"([A-Za-z][A-Za-z0-9-]{2,}?)\d+")
_HOSTS_OF_LIST = re.compile(r"([A-Za-z][A-Za-z0-9-]{1,}?)\d*\[[\d,-]+\]")
_DOMAIN = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}")
_FILE_LIKE = re.compile(r".*[./_\d].*")
_COMMON_PROGRAM = re.compile(r"python[\d.]*|bash|sh|java|ray|node|torchrun|srun|mpirun|--?")
_HARMLESS = {"root", "localhost", "none", "true", "false", "ubuntu", REDACTED}  # they name nobody
_LONGEST_HOST = 1024  # a list of hosts; what is longer is none, and would take its time
_NOTHING = re.compile(r"(?!)")


def names_someone(variable: str) -> bool:
    """Whether a variable of this name holds a host, a person, or a file that a person named."""
    return _NAMING_VARIABLES.fullmatch(variable) is not None


class PrivateWords:
    """What to take out of texts about one node: its own words, and what looks like an address or a path."""

    def __init__(self, node: Node) -> None:
        hosts = [word for word in _hosts_of(node) if len(word) <= _LONGEST_HOST and not _is_harmless(word)]
        words = [*hosts, *(host.partition(".")[0] for host in hosts), *_words_of(node)]
        self._stand_ins = {word: REDACTED for word in words if not _is_harmless(word)}
        for place, name in enumerate(node.source.files, 1):
            self._stand_ins[name] = f"dump-{place}"
        self._lowered = {word: word.lower() for word in self._stand_ins}
        self._hosts = _hosts_like(hosts)
        self._cards: dict[str, str] = {}

    def add(self, word: str, stand_in: str) -> None:
        """One more word, with what takes its place."""
        self._stand_ins[word] = stand_in
        self._lowered[word] = word.lower()

    def taken_out(self, text: str) -> str:
        """The text without them."""
        text = _LOG_HOST.sub(rf"\1{REDACTED}", text)
        text = _MAIL.sub(REDACTED, _PROCESS.sub(rf"\1{REDACTED}", text))
        text = _PATH.sub(_path, text)
        for address in _ADDRESSES:
            text = address.sub("0.0.0.0", text)
        text = _CARD.sub(self._card, _CLOUD.sub(REDACTED, text))
        return self._hosts.sub(REDACTED, self._own_words_replaced(text))

    def _own_words_replaced(self, text: str) -> str:
        # most texts hold none of them, and a pattern of thousands of words is slow
        lowered = text.lower()
        held = [word for word, small in self._lowered.items() if small in lowered]
        if not held:
            return text
        # a word with a digit in it is no word of a language: it means the same in capitals
        words = "|".join(
            f"(?i:{re.escape(word)})" if re.search(r"\d", word) else re.escape(word)
            for word in sorted(held, key=len, reverse=True)
        )
        pattern = re.compile(rf"(?<![A-Za-z0-9_])(?:{words})(?![A-Za-z0-9_])")
        return pattern.sub(lambda match: self._stand_ins.get(match.group(), REDACTED), text)

    def _card(self, match: re.Match[str]) -> str:
        """A network interface named by its hardware address keeps being the same one everywhere."""
        kind, address = match[1], match[2]
        return f"{kind}{self._cards.setdefault(address, f'{len(self._cards) + 1:012x}')}"


def _path(match: re.Match[str]) -> str:
    library = _LIBRARY.fullmatch(match.group())
    return f"/{REDACTED}/{library[1]}" if library else f"/{REDACTED}"


def _is_harmless(word: str) -> bool:
    # a serial has many digits; fewer are any number
    return not word.strip() or word.lower() in _HARMLESS or (word.isdecimal() and len(word) <= 6)


def _words_of(node: Node) -> Iterator[str]:
    for gpu in node.gpus:
        yield known(gpu.serial) or ""
        for process in known(gpu.processes) or ():
            yield known(process.user) or ""
            name = known(process.name) or ""
            if system_program(name) is None:
                yield from _words_of_command(name)
    yield known(node.software.torch_location) or ""
    if node.source.kind != "simulated":
        yield node.source.name
    for variable in known(node.environment.variables) or ():
        yield from _USER.findall(variable.value)
        if names_someone(variable.name):
            yield variable.value
    for event in known(node.kernel_log.events) or ():
        yield from _USER.findall(event.text)


def _hosts_of(node: Node) -> Iterator[str]:
    yield known(node.host.hostname) or ""
    for variable in known(node.environment.variables) or ():
        if re.search("NODELIST|NODENAME|ADDR|HOST", variable.name):
            # a list is hopper[17-24,30],login1; an address may have a port
            yield from (host.partition(":")[0] for host in re.split(r",(?![^\[]*\])", variable.value))
    for event in known(node.kernel_log.events) or ():
        if host := _LOG_HOST.match(event.text):
            yield host[2]


def _words_of_command(command: str) -> Iterator[str]:
    """A command line, and those of its words that are somebody's files."""
    if not _COMMON_PROGRAM.fullmatch(command.rpartition("/")[2]):
        yield command
    for word in command.split():
        name = word.rpartition("/")[2]
        if len(name) > 3 and _FILE_LIKE.fullmatch(word) and not _COMMON_PROGRAM.fullmatch(name):
            yield name


def _hosts_like(hosts: list[str]) -> re.Pattern[str]:
    """Hosts called like these, or of their domains: `hopper18` where `hopper17.lab.example.org` is known."""
    patterns: set[str] = set()
    for name in hosts:
        host, _, domain = name.partition(".")
        if match := _HOSTS_OF_LIST.match(name) or _HOST.fullmatch(host):
            patterns.add(rf"{re.escape(match[1])}\d+")
        if _DOMAIN.fullmatch(domain):
            patterns.add(rf"(?:[\w-]{{1,63}}\.){{0,8}}{re.escape(domain)}")
    return re.compile(rf"(?i)(?<![\w-])(?:{'|'.join(sorted(patterns))})(?![\w-])") if patterns else _NOTHING
