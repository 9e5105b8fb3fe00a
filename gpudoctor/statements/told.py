"""Which sentences of a line of prose tell of a failure that is so now: not what they deny, ask, or tell as over.

Whoever writes to a colleague writes all of these; programs write the plain sentence, and are left as they are.
"""

from __future__ import annotations

from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.catalogue import find_label
from gpudoctor.statements.forms import form_of

_MOST_SENTENCES = 20
_BETWEEN = lazy_pattern(r"(?<=[?!])\s+|(?<=[^.]\.)\s+(?=[A-Z])")
_BAD = (
    r"(?:(?:fallen|fell|fall) off(?: the bus)?|lost|down|dead|broken|missing|stuck|hung|hang(?:ing)?|fail(?:ed|ing)?|crash(?:ed|ing)?|abort(?:ed|ing)?"
    r"|timed out|unreachable|unhealthy|degraded|corrupt(?:ed)?|downgraded)\b"
)
# "has not yet fallen off the bus"; the "not" of "has not responded since it fell" is of another word
_DENIED = lazy_pattern(rf"(?i)(?:\bnot|n['’]t)\s+(?:(?:yet|ever|been|actually|really|even|in fact)\s+){{0,2}}{_BAD}")
# the denial of all that follows, up to a comma
_DENIED_WHOLE = lazy_pattern(
    r"(?i)\b(?:(?:not|\w+n['’]t) (?:true|the case|think|believe|one of|a single)|neither|nothing|nobody|doubt)\b[^,;:]*"
)
_INVERTED = lazy_pattern(
    r"(?i)\W*(?:is|are|was|were|has|have|had|did|does|do|can|could)(?:n['’]t)? (?:(?:the|this|that|my|our|your|a|any|one|some|all|of) ){0,3}"
    r"(?:GPUs?|cards?|nodes?|devices?|hosts?|it|they|you|anyone|anybody)\b"
)
_CLAUSES = lazy_pattern(r"[,;:(]|\b(?:and|so|what|how|any|can|should|who|where)\b")
_SUPPOSED_WHY = lazy_pattern(r"(?i)\b(?:why|how come|since when)\b")
# after a conjunction, and of the same subject: "and its cable was swapped" tells of another part
_MENDED = lazy_pattern(
    r"(?i)(?:[,;(-]|\b(?:and|but|then))\s*(?:(?:it|they|we|I|has|have|had|was|were|been|got|is|since|then|now|already|later)\s+){0,4}"
    r"(?:swapped|replaced|exchanged|fixed|repaired|resolved|solved)\b"
)
_NOT_OVER = lazy_pattern(r"(?i)\b(?:again|still|but|yet)\b")
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
    kept = [_DENIED_WHOLE.sub("…", _DENIED.sub("…", each)) for each in sentences if not (_asks(each) or _is_over(each))]
    return text if kept == sentences else " ".join(kept)


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


def _is_over(sentence: str) -> bool:
    mended = _MENDED.search(sentence)
    if mended is None:
        return False
    later = sentence[mended.end() :]
    return not (_NOT_OVER.search(later) or _tells(later))


def _tells(text: str) -> bool:
    return find_label(text) is not None or form_of(text) is not None
