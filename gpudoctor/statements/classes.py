"""The class of a statement, by words of class: they are few, and stay the same from one tool to the next."""

from __future__ import annotations

import re

from gpudoctor.statements.model import Kind

# the first that matches decides: what points elsewhere, then what others did, then what the machine lacks
_WORDS: tuple[tuple[Kind, str], ...] = (
    (
        "death",
        r"\b(?:worker|proc(?:ess)?|subprocess|engine|actor|server|daemon|rank|node)(?:es|s)? (?:(?!due|because|after|with|by)\S+ ){0,2}?(?:has |have |was |is |were )?(?:unexpectedly )?(?:died|crashed|dead)\b(?! (?:with|by|of) )",
    ),
    (
        "wrapper",
        r"\bsee (?:\w+ ){0,4}(?:above|below|log|root cause|stack trace|error|full)|\broot cause\b|non-?zero (?:exit|status|code)|unhandled (?:system|cuda) error"
        r"|\bchildfailederror|\bcalledprocesserror|\braytaskerror|\bexit(?:ed)?(?: with)? (?:error )?(?:code|status)|\berror executing job\b"
        r"|\ban? (?:\w+ ){0,2}(?:error|exception|failure) (?:has )?occurr?ed\b|\b(?:encountered|hit|met) an? (?:\w+ ){0,2}(?:error|exception|failure)\W*$|\bcaught \w+(?:error|exception) in (?:dataloader|replica|pin)"
        r"|\b(?:sub)?process(?:es)? (?:\d+ )?(?:has |have )?(?:failed|exited|terminated)\b|\bprocess group watchdog thread|^\W*aborting\b|^\W*traceback\b|^\W*terminate called\b|\bfail(?:ed|ure) (?:due to|because of) (?:\w+ ){0,2}(?:errors?|failures?)\b"
        r"|\bset the environment variable\b|\b(?:worker|engine|actor|job|task|pod|container)s? (?:\S+ )?(?:has |have |was |is )?(?:failed|unhealthy)\b"
        r"|\bfailed to (?:start|launch|initiali[sz]e) (?:the )?(?:workers?|engine|trainer|actors?)\b|\bwhile (?:loading|running|executing) [\w ]{0,30}process\b"
        r"|^\W*\[[\w:.-]+\]\W*$|make(?:\[\d+\])?: \*\*\*|\bninja: build stopped",
    ),
    (
        "peer",
        r"\b(?:closed|reset|aborted|lost|dropped|terminated) by (?:\w+ )?(?:peer|remote|foreign|other)|\bbroken pipe\b|\bremote (?:process|peer|side|end)\b|\bconnection (?:was |to \S+ |with \S+ )?(?:closed|reset|lost|aborted)"
        r"|\b(?:socket|stream|transport|channel) (?:was |is )?closed\b|\bpeer (?:\S+ )?(?:is |was |has )?(?:gone|dead|lost|disconnected|exited|unexpectedly)|\bunexpected(?:ly)? (?:eof|disconnect|closed)|\bend of file\b"
        r"|\bshut ?down by another\b|\bcommunicator (?:was|is) aborted",
    ),
    (
        "wait",
        r"\b(?:timed?[ -]?out|timeouts?|deadline[_ ]exceeded|no progress|not responding in time)\b.{0,200}\b(?:collective|barrier|tcpstore|c10d|rendezvous|all_?reduce|all_?gather|broadcast|heartbeat|workers?|ranks?|watchdog|synchroni[sz]\w+|join\w*|(?<!gsp )rpc(?!.{0,40}\bgsp))\b"
        r"|\b(?:collective|barrier|tcpstore|c10d|rendezvous|all_?reduce|all_?gather|broadcast|heartbeat|worker|rank|watchdog|wait\w*|join\w*|(?<!gsp )rpc(?!.{0,40}\bgsp))\b.{0,200}\b(?:timed?[ -]?out|timeouts?|deadline[_ ]exceeded|exceeded)\b"
        r"|\bmay be stuck\b|\bis stuck\b|\bno (?:\w+ ){1,5}(?:found|received|heard) (?:in|for|within) \d+ ?s",
    ),
    (
        "end",
        r"\bsig(?:term|int|hup|usr[12])\b|\bcancel(?:led|ed|ing|lation)\b|\bshutting down\b|\bkeyboardinterrupt\b|\bdeath signal\b|\bpreempt|\binterrupted by (?:user|signal)"
        r"|\bterminated by (?:user|signal|the user)|^\W*terminated\W*$|\bgraceful(?:ly)? (?:exit|stop|shut)|\btime limit\b|\bgot signal\b",
    ),
    (
        "resource",
        r"\bout of memory\b|\boom\b|\bcannot allocate\b|\b(?:unable|failed|can't|not enough|insufficient)\b.{0,40}\b(?:memory|space|disk|storage|shm|resources?)\b(?! tests?\b)|\bno space left\b|\bquota\b|\btoo many open files\b"
        r"|\baddress already in use\b|\bport (?:\d+ )?is (?:already )?in use\b|\bresource temporarily unavailable\b|\bstart new thread\b|\bread-only file system\b|\bmemoryerror\b|\boutofmemory\w*|\bbus error\b",
    ),
    (
        "network",
        r"\bno route to host\b|\b(?:host|network|destination) (?:is )?unreachable\b|\bconnection (?:refused|timed out|error)\b|\bname or service not known\b|\bname resolution\b|\b(?:could not|cannot|unable to|failed to) (?:(?:resolve|connect|reach)\b|(?:complete|establish|open|make) an? (?:\w+ )?connection\b)"
        r"|\bmax retries exceeded\b|\bunknown host\b|\bno such host\b|\bhost(?:name)? not found\b|\bnodename nor servname\b|\b(?:gaierror|connectionerror|connecterror|httpserror|httperror|connecttimeout|readtimeout)\b|\bnot reachable\b|\btls handshake\b|\bi/o timeout\b|\bconnect failed\b|\bsocket timeout\b|\bssl\w*error\b",
    ),
)  # fmt: skip
_CLASSES = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _WORDS)
_FAR = 4096


def kind_of(message: str) -> Kind:
    """The class of a message; what no word decides is a cause of its own.

    >>> kind_of("Connection reset by peer"), kind_of("srun: unrecognized option '--gpus-per-nod'")
    ('peer', 'cause')
    """
    shown = message[:_FAR]
    return next((kind for kind, pattern in _CLASSES if pattern.search(shown)), "cause")
