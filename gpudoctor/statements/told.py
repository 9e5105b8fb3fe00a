"""Which sentences of a line of prose tell of a failure that is so now: not what they deny, ask, or tell as over.

Whoever writes to a colleague writes all of these; programs write the plain sentence, and are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.catalogue import find_label
from gpudoctor.statements.forms import form_of

_MOST_SENTENCES = 20
_BETWEEN = lazy_pattern(r"(?<=[?!])\s+|(?<=[^.]\.)\s+(?=[A-Z])")
_BAD = (
    r"(?:(?:fallen|fell|fall) off(?: the bus)?|lost|down|dead|broken|missing|stuck|hung|hang(?:ing)?|fail(?:ed|ing)?|crash(?:ed|ing)?|abort(?:ed|ing)?"
    r"|timed out|unreachable|unhealthy|degraded|corrupt(?:ed)?|downgraded|died|gone|vanished|disappeared)\b"
)
# "has not yet fallen off the bus"; the "not" of "has not responded since it fell" is of another word
_DENIED = lazy_pattern(rf"(?i)(?:\bnot|n['’]t)\s+(?:(?:yet|ever|been|actually|really|even|in fact)\s+){{0,2}}{_BAD}")
# the denial of all that follows, up to a comma
_DENIED_WHOLE = lazy_pattern(
    r"(?i)\b(?:(?:not|\w+n['’]t) (?:true|the case|think|believe|one of|a single)|neither|nothing|nobody|doubt)\b[^,;:]*"
)
_INVERTED = lazy_pattern(
    r"(?i)\A\W*(?:is|are|was|were|has|have|had|did|does|do|can|could)(?:n['’]t)? (?:(?:the|this|that|my|our|your|a|any|one|some|all|of) ){0,3}"
    r"(?:GPUs?|cards?|nodes?|devices?|hosts?|it|they|you|anyone|anybody)\b"
)
_CLAUSES = lazy_pattern(r"[,;:(]|\b(?:and|so|what|how|any|can|should|who|where)\b")
_SUPPOSED_WHY = lazy_pattern(r"(?i)\b(?:why|how come|since when)\b")
_THING = r"(?:cards?|GPUs?|devices?|boards?|modules?|nodes?|one|problem|issue|error|fault|failure)\b"
# mended is what failed, and not a part beside it: "its cable was swapped", "we replaced the fan"; nor a plan: "to be replaced";
# nor what helps: "it is fixed by a reboot each time", "this is fixed in driver 570"
_MENDING = (
    rf"(?:(?:it|they|we|I|this|that|(?:the|that|this) {_THING}|all|both|has|have|had|was|were|been|got|(?:is|are)(?= (?:now|already))|since|then|now|already|later) +){{0,5}}"
    rf"(?:swapped|replaced|exchanged|fixed|repaired|resolved|solved)(?= *$|[.,;:!)]| +(?:it|them|(?:the|that|this) {_THING}|(?:by|on|in|at|with|under|during|last|yesterday|today"
    r"|this|since|before|after|later|now|already|again|and|but|then)\b))"
)
_MENDED = lazy_pattern(rf"(?i)(?:[,;(-]|\b(?:and|but|then)\b) *{_MENDING}")
_MENDED_ALONE = lazy_pattern(rf"(?i)\A\W*(?:GPU ?#?\d+ +)?{_MENDING}")
_NOT_OVER = lazy_pattern(
    r"(?i)\b(?:again|still|but|yet|however|same|persists?|remains?|returned|recurr\w+|not|never|thought|hoped|believed|supposedly|allegedly)\b|n['’]t\b"
)
_NAMED = lazy_pattern(r"(?i)\bGPU ?#?(\d+)")
_SEVERAL = lazy_pattern(r"(?i)\bGPUs\b|\bGPU ?#?\d+ ?(?:,|and|or|to|-|/) ?\d")
# "since it had fallen off the bus", "we found that it had": the time of another sentence
_PAST = lazy_pattern(
    rf"(?i)(?!.*\b(?:since|after|because|as|that|when|until|before|found|saw|see|says?|said|shows?|showed|report(?:s|ed)|noticed|logs?|dmesg)\b.*\bhad\b)"
    rf".*\bhad (?:(?:already|once|just|also|been) ){{0,2}}{_BAD}"
)


def told(text: str) -> str:
    """The sentences that tell of something now, without what they deny; the text itself where that is all of it.

    >>> told("GPU 3 has NOT failed. Has GPU 4 fallen off the bus? GPU 5 has."), told("GPU 3 hung, as it fell off")
    ('GPU 3 has …. GPU 5 has.', 'GPU 3 hung, as it fell off')
    """
    sentences = _BETWEEN.split(text, _MOST_SENTENCES)
    retained: list[str] = []
    n = 0
    while n < len(sentences):
        over = _over(sentences, n)
        if not over and not _asks(sentences[n]):
            retained.append(_DENIED_WHOLE.sub("…", _DENIED.sub("…", sentences[n])))
        n += over or 1
    return text if retained == sentences else " ".join(retained)


def is_past(text: str) -> bool:
    """Whether the text tells of a failure in the past perfect alone, which leaves open whether it is over."""
    rest = " ".join(each for each in _BETWEEN.split(text, _MOST_SENTENCES) if not _PAST.match(each))
    return rest != text and not _tells(rest)


def _asks(sentence: str) -> bool:
    """Whether it asks for the failure itself: not for its reason, nor what to do about it."""
    if _INVERTED.match(sentence):
        return True
    asked = sentence.rstrip().endswith("?") and not _SUPPOSED_WHY.search(sentence)
    return asked and _tells(_CLAUSES.split(sentence)[-1].rstrip(" ?"))


def _over(sentences: Sequence[str], n: int) -> int:
    """How many sentences from here tell of a failure that is over: this one says that it was mended, or the next one.

    In doubt it is not over: if several GPUs are named, or what follows tells of something that goes on.
    """
    sentence, behind = sentences[n], sentences[n + 1 :]
    if mended := _MENDED.search(sentence):
        later, count = sentence[mended.end() :], 1
    elif behind and (mended := _mended_in(behind[0])) and _names_one(f"{sentence} {behind[0]}"):
        later, count = behind[0][mended.end() :], 2
    else:
        return 0
    behind = sentences[n + count :]
    goes_on = _NOT_OVER.search(" ".join([later, *behind])) or _tells(later)
    return 0 if goes_on or any(_tells(each) and not _NAMED.search(each) for each in behind) else count


def _mended_in(sentence: str) -> re.Match[str] | None:
    return None if sentence.rstrip().endswith("?") else _MENDED_ALONE.match(sentence)


def _names_one(text: str) -> bool:
    return len(set(_NAMED.findall(text))) <= 1 and not _SEVERAL.search(text)


def _tells(text: str) -> bool:
    return find_label(text) is not None or form_of(text) is not None
