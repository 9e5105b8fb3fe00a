"""Which prose tells of trouble with a machine or its GPUs, in words that no form of a failure has.

"The server reboots after 300 iterations", "it crashes and freezes the machine", "the GPU will no longer be available":
what broke is not said, so it is no failure that is reported; but a text with such a sentence is not that of a well node.
"""

from __future__ import annotations

from gpudoctor.lazy import lazy_pattern
from gpudoctor.statements.told import told

_FAR = 1000
_MOST_SENTENCES = 20
_SENTENCES = lazy_pattern(r"(?<=[.!?])\s+")
_THING = (
    r"(?:(?:GPUs?|(?:graphics|video) cards?|servers?|machines?|nodes?|hosts?|computers?|workstations?|nvidia-smi)\b)"
)
# what a thing does of itself, now or each time
_DOES = (
    r"(?:(?:re)?boots?(?= (?:after|during|while|when|as soon|by|every|again|it?self|in the middle|at)\b)|reboots|restarts (?:it?self|on its own|by itself)|crash(?:es|ed)|"
    r"fr(?:eezes|oze|ozen)|freeze(?= )|hangs|hung|shuts (?:down|off)|powers (?:down|off)|turns off|dies|disappears|vanishes"
    r"|drops out|(?:goes|went) (?:away|down|offline|dark|black)|(?:stops|stopped) (?:responding|working|answering))\b"
)
_NO_MORE = (
    r"(?:no longer|not|n['’]t|never) (?:\w+ ){0,2}?"
    r"(?:available|visible|seen?|detected|found|respond(?:s|ing)?|refresh|answer(?:s|ing)?|work(?:s|ing)?|usable|come up|boot)\b"
)
_TELLS = lazy_pattern(
    rf"(?i)\b{_THING}(?: (?!and\b|if\b|which\b|who\b|no\b|never\b|not\b|\w+n['’]t\b)[\w'’-]{{1,15}}){{0,4}}? (?:{_DOES}|{_NO_MORE})"
    rf"|\b(?:crashes|reboots|freezes|hangs) (?:and \w+ )?(?:the|my|our|this|that|whole|entire)(?: \w+)? {_THING}"
    rf"|\b(?:los(?:es?|ing)|lost) (?:(?:the|its|a|one|my|our|all|of|\d+) ){{0,3}}{_THING}"
    rf"|\b(?:{_NO_MORE})(?: (?:the|a|my|any|its))? (?:\w+ )?{_THING}"
)
# what somebody did on purpose, supposes, asks, or tells as over
_NOT_SO = lazy_pattern(
    r"(?i)\b(?:if|whether|unless|in case|e\.g|such as|should|would|might|may|could|nobody|doubt|used to|before I|fixed|solved|resolved|repaired|replaced"
    r"|swapped|please|how to|to avoid|no issues?|no problems?|fine|scheduled|planned|maintenance|on purpose|by design|game)\b|\?\s*$"
)


def trouble_in(text: str) -> str | None:
    """The first sentence of a line of prose that tells of trouble now; None if none does.

    >>> trouble_in("We train ResNet. The server reboots after 300 iterations.")
    'The server reboots after 300 iterations.'
    >>> trouble_in("If the server reboots, call me"), trouble_in("We rebooted the server, all GPUs are visible")
    (None, None)
    """
    sentences = _SENTENCES.split(told(text[:_FAR]), _MOST_SENTENCES)
    return next((each.strip() for each in sentences if _TELLS.search(each) and not _NOT_SO.search(each)), None)
