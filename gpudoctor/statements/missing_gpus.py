"""What a person says of GPUs that are gone, or of a machine that goes down by itself under its load.

One GPU died or disappeared, or fewer are seen than there are.
"""

from __future__ import annotations

import re
from typing import Literal

from gpudoctor.lazy import lazy_pattern

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {word: number for number, word in enumerate(_WORDS, 1)} | {"sixteen": 16}
_COUNT = rf"(?:\d{{1,4}}|{'|'.join(_NUMBERS)})"
# by its word: a card, device or board may be any. A number or one digit is a model only beside what says so
_MODEL = (
    r"(?:(?:GTX|RTX|Titan|Tesla|Quadro|GeForce)(?: (?!cards?\b|GPUs?\b|boards?\b|has|have|is|are|was|died)\w{1,8}){0,2}"
    r"|(?-i:A(?:10|16|30|40|100|800)|B[123]00|H(?:20|100|200|800)|K[248]0|L[24]0|P40|P100|V100)[a-zA-Z]{0,3}"
    r"|(?-i:A2|L4|P4|T4)(?= (?:card|GPU|board))|(?:(?<=\bmy )|(?<=\b(?:our|the|one|two) ))[2345]0[5-9]0(?: ?(?:Ti|Super))?s?|MI\d{2,3}X?)"
)
_PART = r"(?:cards?|boards?|devices?|modules?)"
_THING = rf"(?:(?:GPUs?|(?:graphics|video) cards?|{_MODEL})\b(?: (?:GPUs?|{_PART})\b)?(?: ?#?\d{{1,3}}\b)?)"
_MACHINE = r"(?:server|machine|node|host|computer|workstation|PC|box)"
_NAMES_ONE = lazy_pattern(rf"(?i)\b(?:{_THING}|nvidia-smi|{_MACHINE}s?)\b")
_AUX = r"(?:has|have|is|are|just|now|also|suddenly|simply|all|both|again|already|completely|totally|went|got)"
_TIME = r"(?: (?:since|after|again|now|today|yesterday|overnight|during|while|when|last night|this (?:morning|noon|afternoon|evening)|on \w{3,6}day|at \d{1,2}|and|but|so)\b)"
_END = rf"(?=[^\w?]*$|\W?[.,;!)]|:(?! ?(?:no|none|false|0)\b)|{_TIME})"
_IN_NVIDIA_SMI = r"(?: up)? (?:in|from|to|by) (?:the )?(?:output of )?\W?nvidia-smi\b"
_ON_NODE = (
    r" (?:in|from|on) (?:the |this |our |my )?(?:PCI\w* bus|bus|node|host|server|machine|system|box|lspci|dmesg)\b"
)
_NOT_SHOWN = (
    r"(?:no longer (?:shows?|appears?)|(?:(?:do|does|is|are)(?: not|n['’]t)) (?:show(?:ing|n)?|appear(?:ing)?))"
    r"(?: up(?: any ?more)?| any ?more|(?!,))"
)
# it may also be over, or be missing to one process alone
_AWAY = rf"(?:gone|vanish(?:ed|es)|disappear(?:ed|s|ing)?|missing|{_NOT_SHOWN})"
_DEAD = rf"(?:(?:died|dead)(?:{_END}|(?= (?:in|on|at|with|during|while|when|because)\b))|(?:drop(?:ped|s)|falling) off(?: the (?:\w+ )?bus\b)?{_END})"
# the thing is the subject of its clause, and nothing stands before it but which one it is
_GONE = lazy_pattern(
    rf"(?i)(?:^\W*|[.;:!?,(] ?|\b(?:and|but|that|because|since|after|so|then|as|while|now|today|however) )"
    rf"(?P<which>{_COUNT} of |(?:{_COUNT}|an?|the|this|that|these|those|my|our|your|another|all|both|several|other|whole|first|second|third|fourth|last"
    rf"|\d{{1,2}}(?:st|nd|rd|th)|left|right|upper|lower|nvidia|AMD) ){{0,5}}?"
    rf"(?:(?:{_THING} ?){{1,3}}(?:\([^)]{{1,60}}\) ?)?(?:(?:in|at|of|on|inside) [\w./-]{{1,40}} (?:\d{{1,3}} )?){{0,2}}"
    rf"(?:{_AUX} |(?P<unsure>(?:was|were|seem(?:s|ed)?|looks?)(?: to(?: be| have)?)? ))*"
    rf"(?:{_DEAD}|(?P<away>{_AWAY})(?P<where>{_IN_NVIDIA_SMI}|{_ON_NODE})?{_END})"
    rf"|{_PART} (?:{_AUX} )*{_AWAY}{_IN_NVIDIA_SMI}{_END})"
)
# with its article it is no "X server" or "login node"; who does it to something has an object
_GOES_DOWN = lazy_pattern(
    rf"(?i)(?:^\W*|[.;:!?,(] ?|\b(?:and|but|that|because|since|after|so|then|as|while|now|today|however|hours?|minutes?|iterations|steps|time|training) )"
    rf"(?:the|this|our|my) (?:(?:whole|entire|same|GPU) )?{_MACHINE} (?:(?:suddenly|always|simply|just|often|sometimes|randomly|then|itself) )*"
    rf"(?:(?:reboots?|crash(?:es|ed)|freezes|froze|hangs|hung|shuts (?:down|off)|dies|died)(?: (?:it?self|by itself|on its own|completely|again|twice))*"
    rf"(?:{_END}|(?= (?:under|in the middle|in training|whenever|as soon as)\b)))"
)
_COUNTED = lazy_pattern(rf"(?i)\b{_COUNT}\b")
_TAKEN_OUT = lazy_pattern(r"(?i)\b(?:sold|bought|moved|removed|pulled|lent|borrowed|donated)\b")
# what stands before it in its sentence takes it back, or says that it is not known
_SUPPOSED = lazy_pattern(
    r"(?i)(?:\b(?:if|whether|unless|in case|how to|e\.g|such as|should|would|might|may|could|not|never|nobody|doubt|maybe|perhaps|possibly"
    r"|think|thought|believed?|assumed?|suspect|guess|until|before|when|once|every time)\b|n['’]t\b)"
)
# a time, not a condition: "when I train on it, the server reboots"
_AT_A_TIME = lazy_pattern(r"(?i)^.*\b(?:when|once|every time|before|until) (?:I|we|it|they|the|a|all)\b[^,]{3,200}, ?")
_SENTENCE_END = lazy_pattern(r"[.!?;]\s+")
# what stands behind it says that it is over, unless that is denied or only wished for
_MENDED = lazy_pattern(
    r"(?i)(?P<denied>(?:\b(?:not|never|no|be|must|will|needs?|please|cannot)|n['’]t) (?:\w+ ){0,2}?)?"
    r"\b(?:back(?! to \d)|recovered|returned|repaired|replaced|swapped|exchanged|fixed|resolved|solved|restored|reappear\w*|(?:a|the) new one"
    r"|(?:good|fine|OK|well) (?:now|again)|works? (?:again|now))\b"
)
_SEEN = (
    r"(?:visible|detected|found|listed|seen|shown|recogni[sz]ed|enumerated|present|online|reachable|alive|healthy|usable"
    r"|work(?:ing)?|left|responds?|responding|answer(?:s|ing)?)\b"
)
_SEES = (
    r"\b(?:sees?|shows?|finds?|lists?|reports?|detects?|recogni[sz]es|counts?|displays?|has|have|there (?:is|are))\b"
)
# "only 7/8 GPUs visible": one is missing, unless a process is given no more; "only 2/8 GPUs are busy" lacks none
_FEWER = lazy_pattern(r"(?i)\bonly (\d{1,4}) ?(?:of|/) ?(\d{1,4}) (?:\w+ )?(?:GPU|card|device)s?\b")
_THEN_SEEN = lazy_pattern(rf"(?i) (?:(?:is|are|was|were|still|now) )*{_SEEN}(?=\W*$|[.,;:!)])")
_LATER_SEEN = lazy_pattern(rf"(?i)\b{_SEEN}")
_SOMEBODY_SEES = lazy_pattern(rf"(?i){_SEES}")
# "8 A40 are installed, nvidia-smi lists 6 of them"
_OWNED = lazy_pattern(
    rf"(?i)\b({_COUNT})(?: ?x)? (?:(?!of\b)[\w.-]{{1,12}} ){{0,3}}?(?:{_THING})\b(?!\s*(?:each|per)\b)"
)
_TOOL = r"(?:nvidia-smi|lspci|the (?:driver|OS|kernel|system)|linux|NVML|dmesg|CUDA)"
_SHOWN = (
    rf"(?:\b{_TOOL}\W{{1,3}}(?:(?:now|only|just|still|currently|also) ){{0,2}}(?:shows?|lists?|sees?|finds?|reports?|detects?|counts?|displays?|recogni[sz]es)(?: me| up)?"
    rf"|\b(?:only|just))"
)
# a count of what is hot, or in a mode, lacks none
_SHOWS = lazy_pattern(
    rf"(?i){_SHOWN} (?:only |just |up |show(?:s|ing)? |see |the |other |remaining )*({_COUNT})\b"
    rf"(?: of (?:them|those|these)\b)?(?: (?:GPUs?|cards?|devices?)\b)?(?: (?:show|appear)\w*(?: up)?)?{_END}"
)
_BY_A_TOOL = lazy_pattern(rf"(?i)\b{_TOOL}|\b{_SEEN}|\b(?:show|appear)(?:s|ing)?(?: up)?\b")
# "Expected 8 GPUs, found 7", "GPU count: 7 (expected 8)": two counts of GPUs, and words that say which is which
_EXPECTED = lazy_pattern(r"(?i)\b(?:expect(?:ed|s|ing)?|configured)\b")
_FOUND_WORD = r"(?:found|got|detected|sees?|seen|visible|available|reported|reports|present|actual(?:ly)?|shows?|lists?|has|have|only|counts?|match)"
_FOUND = lazy_pattern(rf"(?i)\b{_FOUND_WORD}\b")
_COUNTS_GPUS = lazy_pattern(
    r"(?i)\bGPUs\b|\bGPU ?\(s\)|\bGPU (?:count|device)|\b(?:count|number) of (?:nvidia )?GPU|\bgres/gpu count"
)
_MOST_GPUS = 32  # of one node; more are of a rack or a cluster, or no count of GPUs
_A_COUNT = lazy_pattern(
    rf"(?i)(?:^|\b(?:GPUs|count|number|be|least|exactly|is|are|of|but|while|and|expect(?:ed|s|ing)?|configured|{_FOUND_WORD})\W{{1,3}}|[(<,;:=] ?)"
    r"(\d{1,4})(?=\W*$|[,;)]| ?[(<!=]|\.(?!\d)| (?:(?:nvidia|H\d00|A\d00) )?(?:GPUs?|cards?|devices?|expected|configured|but|and|are|were|is|does|do"
    rf"|{_FOUND_WORD})\b)"
)
# with another word among them, they may count something else, or be of several nodes
_OF_COUNTS = lazy_pattern(
    rf"(?i)(?:\W|\d|\b(?:GPU(?:s|\(s\))?|gres/gpu|nvidia|cards?|devices?|numbers?|of|is|are|was|were|the|but|and|while|does|do|not|lower|than|less|fewer"
    rf"|instead|expect(?:ed|s|ing)?|configured|mismatch|on|in|this|node|host|system|at|least|exactly|[ABHLV]\d{{2,3}}|{_FOUND_WORD})\b)*"
)
_OF_THEM = lazy_pattern(r"(?i)\bof (?:the |our |all )?$")
_BETWEEN_COUNTS = lazy_pattern(r"(?i)[,;:(<]|\b(?:but|and|not|than|instead|differs?)\b")
_SEVERAL_NODES = lazy_pattern(r"(?i)\b(?:each|per|every|(?:nodes|hosts|servers|machines))\b")
# what one process or container sees is no count of the node
_IN_A_PROCESS = lazy_pattern(
    r"(?i)\b(?:container|docker|pod|job|process|rank|srun|sbatch|VM|notebook|session|user|\w*torch\w*|jax|tensorflow|python"
    r"|nproc\w*|world|\w*parallel\w*|\w*visible_devices|(?-i:[A-Za-z]+(?:Error|Exception)))\b"
)
_FAR = 1000


def missing_gpus(text: str) -> Literal["missing", "perhaps"] | None:
    """Whether the text says that the node lacks GPUs; perhaps: it may be of a process, or over, or the node goes down.

    >>> missing_gpus("Our second A40 has died"), missing_gpus("the worker on GPU 3 died")
    ('missing', None)
    >>> missing_gpus("8 GPUs are in it, nvidia-smi lists 6"), missing_gpus("GPU 2 was missing, but it is back")
    ('perhaps', None)
    """
    text = text[:_FAR]
    if not _NAMES_ONE.search(text):
        return None
    lost = _gone(text)
    if lost == "missing":
        return lost
    share = _share(text) or ("missing" if _fewer_than_expected(text) else None)
    if share == "missing" and _IN_A_PROCESS.search(text):
        return "perhaps"
    return share or lost or ("perhaps" if _counts_fewer(text) or goes_down(text) else None)


def _gone(text: str) -> Literal["missing", "perhaps"] | None:
    """What it says of GPUs that are dead or away, each up to the next one: none if it is supposed, denied or over."""
    found: set[str] = set()
    end = len(text)
    for match in reversed(list(_GONE.finditer(text))):
        over = any(each["denied"] is None for each in _MENDED.finditer(text[match.end() : end]))
        end = match.start()
        if over or _is_supposed(text, end):
            continue
        found.add("missing" if _is_sure(text, match) else "perhaps")
    return "missing" if "missing" in found else "perhaps" if found else None


def goes_down(text: str) -> bool:
    """Whether the text says that a machine goes down by itself, and not that this is supposed, over or mended.

    >>> goes_down("after an hour the server reboots"), goes_down("if the server reboots, call me")
    (True, False)
    """
    for found in _GOES_DOWN.finditer(text):
        # the comma may be the beginning of what was found
        before = _AT_A_TIME.sub("", _SENTENCE_END.split(f"{text[: found.start()]}, ")[-1])
        over = any(each["denied"] is None for each in _MENDED.finditer(text, found.end()))
        if not over and not _SUPPOSED.search(before):
            return True
    return False


def _is_sure(text: str, match: re.Match[str]) -> bool:
    """Whether it says which GPU or how many; what is away may be away by intent, or from one process alone."""
    if match["unsure"] or (match["away"] and (_IN_A_PROCESS.search(text) or _TAKEN_OUT.search(text))):
        return False
    counted = _COUNTED.search(match[0]) is not None
    return counted or bool(match["where"] if match["away"] else match["which"])


def _is_supposed(text: str, at: int) -> bool:
    return _SUPPOSED.search(_SENTENCE_END.split(text[:at])[-1]) is not None


def _share(text: str) -> Literal["missing", "perhaps"] | None:
    """What "only 7 of 8 GPUs" says: whether they are seen stands behind it, elsewhere, or, if it is all, nowhere."""
    found = _FEWER.search(text)
    if found is None or int(found[1]) >= int(found[2]) or _is_supposed(text, found.start()):
        return None
    before, behind = text[: found.start()], text[found.end() :]
    if _THEN_SEEN.match(behind):
        return "missing"
    perhaps = _LATER_SEEN.search(behind) or _SOMEBODY_SEES.search(before) or not re.search(r"\w", before + behind)
    return "perhaps" if perhaps else None


def _fewer_than_expected(text: str) -> bool:
    """Whether a sentence about GPUs gives the count that is expected, and a lower one that was found.

    >>> _fewer_than_expected("GPU count: 7 (expected 8)"), _fewer_than_expected("expected 8 GPUs, found 8")
    (True, False)
    """
    if _SEVERAL_NODES.search(text):
        return False
    for sentence in _SENTENCE_END.split(text):
        if (counts := _two_counts(sentence)) is None:
            continue
        first, second = counts
        between = sentence[first.end() : second.start(1)]
        if between.strip() == "<":  # "lower than configured (7 < 8)"
            return int(first[1]) < int(second[1])
        named = _EXPECTED.search(between)
        leads = _EXPECTED.search(sentence[: first.start(1)]) is not None
        leads = leads or (named is not None and not _BETWEEN_COUNTS.search(between[: named.start()]))
        expected, found = (first, second) if leads else (second, first)
        if int(found[1]) < int(expected[1]):
            return True
    return False


def _two_counts(sentence: str) -> tuple[re.Match[str], re.Match[str]] | None:
    """The counts of a sentence that gives two counts of GPUs, an expected one and one that was found, and no more."""
    counts = list(_A_COUNT.finditer(sentence))
    gpus, expected = _COUNTS_GPUS.search(sentence), _EXPECTED.search(sentence)
    if len(counts) != 2 or gpus is None or expected is None or not _FOUND.search(sentence):
        return None
    first, second = counts
    begin = min(first.start(), gpus.start(), expected.start())
    # "temperature of GPUs: ...", "mismatch: 0"
    other = _OF_THEM.search(sentence[:begin]) or "mismatch" in sentence[first.end() :].lower()
    too_many = max(int(first[1]), int(second[1])) > _MOST_GPUS
    if other or too_many or _SUPPOSED.search(sentence.replace("not match", "")):
        return None
    return (first, second) if _OF_COUNTS.fullmatch(sentence, begin) else None


def _counts_fewer(text: str) -> bool:
    """Whether it gives two counts of GPUs, and the one that is seen is the lower one."""
    if not _BY_A_TOOL.search(text) or _SEVERAL_NODES.search(text):
        return False
    shown = [found for found in _SHOWS.finditer(text) if not _is_supposed(text, found.start())]
    owned = max((_number(found[1]) for found in _OWNED.finditer(text)), default=0)
    return any(_number(found[1]) < owned for found in shown)


def _number(word: str) -> int:
    return _NUMBERS.get(word.lower()) or int(word)
