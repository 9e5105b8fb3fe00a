"""How a line shows that it is bad news, by form alone: an exception, a level, a program that complains, a death, an exit.

No framework's words are here. A form gives the message without its mark, and how bad it is.
"""

from __future__ import annotations

import re

import msgspec

from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.missing_gpus import missing_gpus
from gpudoctor.statements.model import Form, Severity

_FAR = 4096

# the C library's texts for errno that end a program
ERRNO = (
    r"No such file or directory|Permission denied|Operation not permitted|Input/output error|No such device(?: or address)?|Cannot allocate memory"
    r"|Device or resource busy|File exists|Not a directory|Is a directory|Invalid argument|Too many open files|No space left on device|Read-only file system"
    r"|Broken pipe|Resource temporarily unavailable|Address already in use|Cannot assign requested address|Network is (?:unreachable|down)|Connection (?:refused|reset by peer|timed out)"
    r"|No route to host|Host is (?:down|unreachable)|Stale (?:NFS )?file handle|Disk quota exceeded|Remote I/O error|Transport endpoint is not connected|Bad file descriptor|Exec format error"
    r"|Argument list too long|Name or service not known|Temporary failure in name resolution|Protocol not (?:available|supported)|Operation not supported|Bad address|command not found"
)
_CAMEL = r"[A-Z]\w{0,78}"
_EXCEPTION_NAME = rf"(?:[A-Za-z_]\w{{0,60}}(?:\.|::)){{0,8}}(?:{_CAMEL}(?:Error|Exception|Failure|Fault|Interrupt|Abort)|Exception|gaierror|(?<=\.)error)"
_LEVELS = r"ERROR|FATAL|CRITICAL|SEVERE|PANIC|EMERG|ALERT|CRIT|ERR"
_COMPLAINTS = (
    r"fatal(?: error)?|error|cannot|can't|could not|couldn't|failed|failure|unable|unrecognized|unknown option|invalid|illegal|unsupported|no such|not found|missing|undefined symbol|symbol lookup error"
    r"|bad |too many|too few|refused|denied|panic|abort(?:ed|ing)?"
)
_VERDICTS = r"FAIL(?:ED|URE)?|Fail(?:ed|ure)?|FAULTY|Faulty|UNHEALTHY|Unhealthy|NOT ?OK|Not OK|NotReady|DEGRADED|Degraded|CRITICAL|Critical|ERROR|Error"
# "GPU 0 has uncorrectable ECC errors"; corrected ones are no failure
_HAS_ERRORS = (
    r"(?i:\b(?:[GTD]PUs?(?: ?#?\d{1,4})?|[ABHLV]\d{2,3}s?|cards?|boards?|(?:nv)?links?(?: \d{1,2})?|NICs?|adapters?|replacement|node) "
    r"(?:still |now |also )?(?:ha[sd]|have|got|gets|shows?|reports?|reported|throws?) (?!(?:\S+ ){0,4}?(?:no|zero|0|correct\w+) (?!.{0,80}uncorrect))(?:[\w-]{1,20} ){0,6}(?:errors|faults|failures)\b)"
)
# a row of a BMC's event log, which tells of what was, too
_BMC_HEAD = r"\s{0,4}[0-9a-f]{1,4} \| [\d/]{8,10} +\|[^|]{1,40}\| [^|]{1,60}\| (?![^|]{0,120}(?i:cleared|\bcorrect))"
_BMC_END = r"[^|]{1,120}\| Asserted\b.{0,80}"
_BMC_FATAL = r"(?=[^|]{0,120}(?i:\bfatal|uncorrect|non-recoverable|\bIERR))"
_BMC_TROUBLE = r"(?=[^|]{0,120}(?i:\blost\b|fail|fault|error|critical|degraded|mismatch|trip|throttl|non-redundant))"
_NO_LONGER = "no longer (?:answers|responds|works|lists|sees|finds|detects)"
_Row = tuple[Form, Severity, str]
# in the order in which they are tried; `message` and `program` are groups
_TEXTS: tuple[_Row, ...] = (
    ("exception", "error", rf"(?:E +|Uncaught |Unhandled |Caused by: )?(?P<message>{_EXCEPTION_NAME}(?:$|: .*| ?\(.*))"),
    ("event", "error", rf"(?P<message>{_BMC_HEAD}{_BMC_FATAL}{_BMC_END})"),
    ("event", "warning", rf"(?P<message>{_BMC_HEAD}{_BMC_TROUBLE}{_BMC_END})"),
    ("death", "fatal",
     r"(?P<message>terminate called\b.*|\s{0,8}what\(\):.*|pure virtual method called.*|(?:Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception|Killed|Trace/breakpoint trap)(?: \(core dumped\))?\W*"
     r"|Fatal Python error: .*|(?:free|malloc|realloc|munmap_chunk)\(\): .*|double free or corruption.*|corrupted (?:size|double-linked).*|\*\*\* (?:stack smashing|SIG\w+).*|thread '[^']{1,80}' panicked at .*|panic: .*)"),
    ("death", "fatal", r".{0,400}?(?P<message>\b(?:Assertion|assertion|Check|CHECK) ?(?:`|'|\"|\().{1,400}?(?:failed|`|')\.?.*|\bAssertion failed\b.*|\bASSERT(?:ION)? (?:in expression|failed|FAILED)\b.*|\bCheck failed: .*|\bcore dumped\b.*)"),
    ("level", "error", r"(?:(?P<program>[A-Za-z][\w./-]{1,60}) )?(?:(?:time=)?\"?\d\S{1,60} |time=\S{1,60} )?level=\"?(?:error|fatal|panic|critical)\"? (?:.{0,200}?\bmsg=)?(?P<message>.*)"),
    ("level", "fatal", r"\W{0,4}(?:FATAL|Fatal|fatal|CRITICAL|PANIC|EMERG)(?:\]| ?:| error:| -|\)| \[|$) ?(?P<message>.*)"),
    ("level", "error", rf"\W{{0,4}}(?:\[?(?:{_LEVELS}|Error|error|ERROR!|Failure)\b[\]:!|)]{{1,3}}|(?:{_LEVELS}) (?:[-|] |(?=\[|\d\d|\S+\.\w+:\d+|[\w.-]{{1,60}}: ))) ?(?P<message>.*)"),
    ("level", "error", rf".{{0,160}}?(?:(?:[ \[(|<]|(?<!\w):|:(?=[A-Z]+:? ))(?:{_LEVELS})(?:[\]):|>]| -| \[| \|)|- (?:{_LEVELS}) - ) ?(?P<message>.*)"),
    ("program", "error", r"(?P<message>(?:\S{0,80} )?Error response from daemon: .*)"),
    ("program", "error",
     rf"(?P<message>(?P<program>[\w./+-]{{1,80}}|\w[\w ./+-]{{0,79}}(?=: error: ))(?:\[\d{{1,10}}\])?: (?:(?:line )?\d{{1,7}}: )?(?:(?i:(?:{_COMPLAINTS})\b).*|[^:]{{1,200}}: (?i:(?:{_COMPLAINTS})\b).*|.{{0,300}}(?:{ERRNO}).*))"),
    ("event", "error",
     r"\s{0,40}(?:\S{1,40} {1,40})?(?P<message>Warning {1,40}(?:Failed\w*|BackOff|Unhealthy|FailedScheduling|Evicted|NodeNotReady|OOMKilling|[A-Z]\w{0,40}(?:Failed|Error|Down)) +.*)"),
    ("exit", "error",
     r"(?P<message>.{0,400}?(?:\b(?:exit(?:ed|s)?|terminated|died|returned|failed|completed|finished)\b.{0,40}?\b(?:exit )?(?:code|status|signal)[ :=(]{0,4}-?[1-9]\d{0,3}\b|\bexitcode ?[:=] ?-?[1-9]\d{0,3}\b"
     r"|\b(?:died|killed|terminated|exited) (?:with|by|on|due to) (?:<Signals\.|signal )?(?:SIG[A-Z]+|\d{1,2}\b)|\bsignal: (?:killed|aborted|segmentation fault)).*)"),
    ("verdict", "error", rf"(?P<message>.{{1,200}}?(?:[|:=]|\.{{2,9}}| {{2,9}}|\t) ?(?:{_VERDICTS})\b(?! ?[:=]? ?0\b)(?:.{{0,200}}|$))"),
    # a row of ps or top: a program of the driver that waits in the kernel
    ("event", "warning", r"(?P<message>\s{0,20}(?:[\w.+-]{1,32}\s+)?\d{1,8}\s(?:[^/\[]{0,80}\s)?D[<LNls+]{0,4}\s.{0,200}?(?:^|[\s/\[(])(?:nvidia-|nv-|dcgm)[\w.-]+.*)"),
    ("errno", "error", rf"(?P<message>.{{0,600}}?(?:{ERRNO}|errno ?[:=]? ?\d{{1,3}}\b).*)"),
    ("sentence", "error",
     r"(?P<message>.{0,400}?(?:(?i:\b(?:fail(?:ed|ure)|fails(?! over\b)|cannot|can't|couldn't|could not|unable to|can not|error|fatal|crash(?:ed|es)?|abort(?:ed|ing)|panic|exception|segfault(?:ed|s)?|not reachable|unreachable|unresponsive|unrecognized|not recognized"
     r"|does not (?:work|respond|exist|support|match)|doesn't (?:work|respond|exist)|(?:not|\w{1,8}n['’]t) (?:responding|listed|visible|available|detected|found|usable|working|allocatable|loaded|running)\b(?! as (?!it\b|they\b|expected|usual|before|intended))(?! (?:in|by|on) (?:the|our|my|this|that|any) (?!\W?(?:node|host|server|machine|system|bus|box|BIOS|PCI\w*|output|list|kernel|OS|driver|cluster|VM|container|nvidia|lspci|nvidia-smi)\b))|lspci\W{1,4}but not (?:(?:in|by|with) )?\W?nvidia-smi|"
     rf"{_NO_LONGER}"
     r"|is lost|lost (?:a|one|its) (?:GPU|card|link)|downgraded|fallen off|fell off|is missing|only (?P<seen>\d+) ?(?:of|/) ?(?!(?P=seen)\b)\d+|(?:is|are|nodes?) down|timed out|hangs|hung|stuck|unhealthy|degraded|mismatch|corrupt(?:ed|ion))\b)"
     rf"|{_HAS_ERRORS}|\bERR!).*)"),
)  # fmt: skip
_FORMS = tuple((form, severity, lazy_pattern(text)) for form, severity, text in _TEXTS)
_SENTENCE = _FORMS[-1][2]
# one of these is in each line that any form takes: most lines are ruled out by this alone
_MAY_BE = lazy_pattern(
    r"FIRING|rror|RROR|nreachable|nresponsive|FAIL|[Ff]ail|FATAL|[Ff]atal|xception|EXCEPTION|CRIT|rit|ERR|anic|PANIC|SEVERE|EMERG|ALERT|[Aa]bort|ABORT|signal|SIG|exit|[Kk]illed|fault|FAULT|[Cc]annot|[Cc]ould|an't|nable|not |n't |n’t |No |no |ot found"
    r"|efused|enied|[Tt]imed|imeout|lost|[Mm]issing|issed|hang|hung|stuck|down|Down|nvalid|nrecognized|nsupported|ssert|terminate|virtual method|core dump|Interrupt|Warning|mismatch|egrade|nhealthy|FAULTY|OK|off|crash|nly \d|busy|Bad |errno|doesn|many|pipe|resource|address|reached|reset|known|[Ii]llegal|breakpoint|corrup|free\(|alloc\(|chunk\(|smash|code|status|died|dies|dead|reboot|freez|froze|gone|anish|sappear|nvidia-|lspci|nv-hostengine|dcgm|what\(\)|xpected|ower than"
)
# a 0 behind one of these counts nothing: it is a number of the thing
_INDEX = r"(?<![<>!]= )(?<![gnhx]pu )(?<!task |rank |node |card |link |port |host |slot |core )(?<!index |stage )(?<!device |worker |client )(?<!process |replica )(?<!local_rank )(?<!cuda:)"
# what only looks like bad news: another level, a second try, a count of none, a metric, code, a question, prose of a person
_NONE = lazy_pattern(
    r"(?-i:(?<![\w:])(?:INFO|DEBUG|TRACE|NOTICE)(?:[\]:|)]|\b(?![:=]))|\bInfo:|\[I\])|level=\"?(?:info|debug|trace)|\b(?:retry|retrying|retries|ignor(?:ed|ing)|expected failure|xfail\w*)\b|\bwill (?:be )?(?:retried|ignored|continue)"
    rf"|\b(?:no|{_INDEX}0|zero|without|any|non) "
    r"(?:\w+ ){0,2}(?:errors?|exceptions?|failures?|failed|faults?)\b|\b(?:errors?|failures?|failed|exceptions?)\b(?: \w+){0,2}\s{0,40}[:=]\s?(?:0(?!: ?[a-z])|none|null|false|\[\])\b"
    r"|\berror(?: rate)?\s?[:=]?\s?-?\d+\.\d|\b(?:mean|absolute|squared|relative|validation|train|test|reconstruction|rounding|numerical|max|avg|val)\w*[_ ](?:\w+[_ ])?error\b"
    r"|^\s*(?:except|raise|def|class|if|return|import|from|elif|assert|try|with|#|//)\b|^(?:wandb|Message|Arguments): |^\s*#\s|\berror[_-](?:\w+)\s?[=:]|--\w*(?:error|fail)\w*|\b(?:on|if|when|in case of|continue_on|stop_on|skip)[_ -](?:an? )?(?:error|failure|fail)s?\b",
    re.IGNORECASE,
)
# "free" ends its clause, or goes on in one of these; before a noun it tells of that: "error: free memory exhausted"
_FREE = r"free(?=\W*$| ?[.,;:!?)|]| (?:since|for|after|on|in|at|from|over|during|until|till|through\w*|now|again|today|so|and|but|as|operation|runs?|running|execution|state|status)\b)"
# says that nothing is wrong; other words of the line may still be bad news
_NO_FAILURE = lazy_pattern(
    r"(?i)\b(?:(?:errors?|failures?|failed|faults?)(?: counts?| total)? 0\b(?![.:%-]|,? ?(?:and |to )?\d)|failed (?:\w+ ){1,3}0 times\b"
    rf"|errors? (?:{_FREE}|not found|log (?:is )?empty|counters? (?:reset|cleared)|containment (?:is )?(?:on|enabled|supported))\b)"
)
# who gives GPUs out no longer gives this one, at whatever level it says so
TAKEN_OUT = lazy_pattern(
    r"(?i)\b(?:mark(?:ed|ing|s) (?:\S+ ){0,6}?(?:as )?|(?:is|was|been|are) set to )unhealthy\b(?!\W{1,3}(?:0|no|none|false)\b)"
)
OF_A_BMC = lazy_pattern(rf"{_BMC_HEAD}(?:{_BMC_FATAL}|{_BMC_TROUBLE}){_BMC_END}")
ONE_GPU = lazy_pattern(r"(?:GPU|MIG)-[0-9a-f]{8}|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_WARNS = lazy_pattern(
    r"(?i)(?:^|[\s\[(|:])(?:warn(?:ing)?s?)\b[\]:|)]?|\w+Warning: |level=\"?warn|\binfoROM is corrupted at gpu\b"
)
# plain prose that tells of no failure now
_SUPPOSES = lazy_pattern(
    rf"(?i)\b(?:(?!{_NO_LONGER}\b)no|never|without|none|zero|if|when|whether|may|might|would|(?<!as it )should|e\.g|such as|fix(?:ed|es)?|rather than|instead of|in case|to avoid|how to|please|try|tips?|known issues?)\b|\?\s*$"
    r"|(?:n't|\bnot) (?:see|seen|get|have|had|find|show)\b|\bI (?:\w{2,12} )?(?:see|saw|get|got|have|had|am|was|tried|try|run|ran|use|think|found|keep)\b"
)
_BETWEEN_SENTENCES = lazy_pattern(r"(?<=[.!?])\s+(?=[A-Z])")
# "the node was fixed but GPU 2 fell off the bus": what follows stands for itself, unless the rest is its condition
_BUT = lazy_pattern(r"(?i)[,;]? +(?:but|yet|however|and(?= (?:now |then )?GPU ?\d)),? +")
_CONDITION = lazy_pattern(
    r"(?i)\b(?:if|when|where|whether|unless|in case|how to|e\.g|such as|known issues?|please|try"
    r"|(?<!was )(?<!were )(?<!been )(?<!got )(?<!not )fix(?:e[ds])?)\b"
)
_ALERT = lazy_pattern(r"\W{0,3}\[FIRING(?:: ?\d{1,4})?\] ")  # of Prometheus' Alertmanager
# glog, abseil and TensorFlow, behind a date of any form
_HEAD = lazy_pattern(r":? ?([IWEF]) \S{1,200}:\d{1,6}\] ?")
# a line of source that a logger printed with its traceback
_SOURCE = lazy_pattern(
    r"\s*(?:File \"[^\"]{1,400}\", line \d|(?:raise|return|yield|await) \S|self\.\w|[A-Za-z_][\w.]{0,80}\(.{0,400}[,(]\s*$|[~^]{2,}\s*$)"
)
_LOUD_LEVELS = ("E", "F", "ERROR", "CRITICAL", "FATAL")
_WARNING_LEVELS = ("W", "WARNING")
_QUIET_LEVELS = ("I", "V", "D", "T", "INFO", "DEBUG")


class Reading(msgspec.Struct, frozen=True):
    """The form of a line, how bad it is, and its message without the mark."""

    form: Form
    severity: Severity
    message: str
    program: str | None = None


def form_of(text: str, level: str | None = None) -> Reading | None:
    """How the text, without its prefixes, shows bad news; None if it shows none. `level`: that of its prefix.

    >>> form_of("srun: unrecognized option '--gpus-per-nod'").form, form_of("val error 0.31, failed samples: 0")
    ('program', None)
    """
    text = text[:_FAR]
    if level is None and (head := _HEAD.match(text)):
        level = head[1]
    loud = level in _LOUD_LEVELS
    if _SOURCE.match(text) if loud else _tells_of_none(text, level):
        return None
    match = next(((form, severity, m) for form, severity, pattern in _FORMS if (m := pattern.match(text))), None)
    if match is None:
        if loud and text.strip():
            return Reading("level", "error", text.strip())
        return _lacking(text)
    form, severity, found = match
    if form == "sentence" and loud:
        form = "level"
    elif form == "sentence" and _SUPPOSES.search(text):
        if (first := _first_that_tells(text)) is None:
            return _lacking(text)
        found = first
    if form == "exception" and "Warning: " in text[:80]:
        return None
    if form not in ("death", "event") and (level in _WARNING_LEVELS or _WARNS.search(text)):
        severity = "warning"
    return Reading(form, severity, found["message"].strip() or text.strip(), found.groupdict().get("program"))


def _lacking(text: str) -> Reading | None:
    """Fewer GPUs than there should be, or an alert whose words show nothing else."""
    if lacks := missing_gpus(text):
        return Reading("sentence", "error" if lacks == "missing" else "warning", text.strip())
    return Reading("event", "warning", text.strip()) if _ALERT.match(text) else None


def _first_that_tells(text: str) -> re.Match[str] | None:
    """Of the first sentences of a line, the first one that tells of a failure now."""
    for sentence in _BETWEEN_SENTENCES.split(text)[:9]:
        last = _behind_but(sentence)
        if not _SUPPOSES.search(last) and (found := _SENTENCE.match(last)):
            return found if "GPU" in last else _SENTENCE.match(sentence)  # its subject stands before the "but"
    return None


def _behind_but(sentence: str) -> str:
    """What follows the last "but" of a sentence that supposes; all of it if that is supposed as well."""
    buts = list(_BUT.finditer(sentence)) if _SUPPOSES.search(sentence) else []
    return sentence[buts[-1].end() :] if buts and not _CONDITION.search(sentence[: buts[-1].start()]) else sentence


def _tells_of_none(text: str, level: str | None) -> bool:
    """Whether the line has no words of bad news, is of a quiet level, or says that nothing is wrong."""
    taken_out = "nhealthy" in text and TAKEN_OUT.search(text) and ONE_GPU.search(text)
    quiet = level in _QUIET_LEVELS and not taken_out
    if quiet or _MAY_BE.search(text) is None or _NONE.search(text):
        return True
    rest = _NO_FAILURE.sub("", text)
    return rest != text and form_of(rest, level) is None


def is_no_news(text: str, level: str | None = None) -> bool:
    """Whether a line that has the words of a known fault does not say that it happened.

    >>> is_no_news("We saw no Xid 79 since"), is_no_news("GPU 3 is dead since noon: fallen off the bus")
    (True, False)
    """
    text = _behind_but(text[:_FAR])
    return level in _QUIET_LEVELS or (_NONE.search(text) or _SUPPOSES.search(text)) is not None
