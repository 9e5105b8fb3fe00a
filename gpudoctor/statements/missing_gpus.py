"""What a person says of GPUs that are gone: one died or disappeared, or fewer are seen than there are."""

from __future__ import annotations

import re
from typing import Literal

from gpudoctor.lazy import lazy_pattern

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBERS = {word: number for number, word in enumerate(_WORDS, 1)} | {"sixteen": 16}
_COUNT = rf"(?:\d{{1,4}}|{'|'.join(_NUMBERS)})"
_MODEL = (
    r"(?:(?:GTX|RTX|Titan|Tesla|Quadro|GeForce)(?: (?!cards?\b|GPUs?\b|boards?\b|has|have|is|are|was|died)\w{1,8}){0,2}"
    r"|(?-i:[ABHKLPTV]\d{1,3})[a-z]{0,4}|[2345]0[5-9]0(?: ?(?:Ti|Super))?s?|MI\d{2,3}X?)"
)
_THING = rf"(?:(?:GPUs?|cards?|boards?|devices?|{_MODEL})(?: ?#?\d{{1,3}}\b)?)"
_NAMES_ONE = lazy_pattern(rf"(?i)\b{_THING}")
_AUX = r"(?:has|have|is|are|was|were|just|now|also|suddenly|simply|all|both|again|already|completely|totally|went|got|seems?|to|be)"
_DEAD = (
    r"(?:died|dead(?! (?:slow|lock))|gone(?! (?:up|to|through|into|down|well|over|beyond|from \d)\b)|vanish(?:ed|es)|disappear(?:ed|s|ing)?|missing(?=\W*$|[.,;:!)]| (?:from|in|since|after|again|now)\b)"
    r"|(?:drop(?:ped|s)?|falling) off|no longer (?:shows?|appears?)|(?:(?:do|does|is|are)(?: not|n['’]t)) (?:show(?:ing|n)?|appear(?:ing)?))\b"
)
# the thing is the subject of its clause: nothing on, of or with a GPU, and no condition
_GONE = lazy_pattern(
    rf"(?i)(?:^\W*|[.;:!?,(] ?|\b(?:and|but|that|because|since|after|so|then|as|while|now|today|however) )"
    rf"(?:{_COUNT} of |(?!(?:on|of|with|for|using|by|from|to|in|at|no|none|neither|if|when|whether|unless|once|until|before|without|every time)\b)[\w'’-]{{1,20}} ){{0,5}}?"
    rf"(?:{_THING} ?){{1,3}}(?:\([^)]{{1,60}}\) ?)?(?:(?:in|at|of|on|inside) [\w./-]{{1,40}} (?:\d{{1,3}} )?){{0,2}}(?:{_AUX} ){{0,4}}{_DEAD}"
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
_SHOWS = lazy_pattern(
    rf"(?i){_SHOWN} (?:only |just |up |show(?:s|ing)? |see |the |other |remaining )*({_COUNT})\b"
    r"(?=\W*$|[.,;:!)]| (?:(?:of (?:them|those|these)|GPUs?|cards?|devices?|show\w*|appear\w*|are|is|in|by|with|now|when|after|instead)\b"
    r"(?! (?:are |is )?(?:idle|busy|free|used|in use|running|at|with|using|allocated|needed|required)\b)))"
)
_BY_A_TOOL = lazy_pattern(rf"(?i)\b{_TOOL}|\b{_SEEN}|\b(?:show|appear)(?:s|ing)?(?: up)?\b")
_SEVERAL_NODES = lazy_pattern(r"(?i)\b(?:each|per|every|(?:nodes|hosts|servers|machines))\b")
_CONDITION = lazy_pattern(r"(?i)\b(?:if|whether|unless|in case|how to|e\.g|such as|should|would|might)\b")
# what one process or container sees is no count of the node
_IN_A_PROCESS = lazy_pattern(
    r"(?i)\b(?:container|docker|pod|job|process|rank|srun|sbatch|VM|notebook|session|user|\w*torch\w*|jax|tensorflow|python)\b"
)
_FAR = 1000


def missing_gpus(text: str) -> Literal["missing", "perhaps"] | None:
    """Whether the text says that the node lacks GPUs; perhaps: it does not say whether of the node or of a process.

    >>> missing_gpus("Our second A40 has died"), missing_gpus("the worker on GPU 3 died")
    ('missing', None)
    >>> missing_gpus("8 GPUs are in it, nvidia-smi lists 6"), missing_gpus("My container: only 2 of the 8 GPUs show up")
    ('missing', 'perhaps')
    """
    text = text[:_FAR]
    if not _NAMES_ONE.search(text) or _CONDITION.search(text):
        return None
    if _GONE.search(text):
        return "missing"
    share = _share(text)
    if share == "missing" or _counts_fewer(text):
        return "perhaps" if _IN_A_PROCESS.search(text) else "missing"
    return share


def _share(text: str) -> Literal["missing", "perhaps"] | None:
    """What "only 7 of 8 GPUs" says: whether they are seen stands behind it, elsewhere, or, if it is all, nowhere."""
    found = _FEWER.search(text)
    if found is None or int(found[1]) >= int(found[2]):
        return None
    before, behind = text[: found.start()], text[found.end() :]
    if _THEN_SEEN.match(behind):
        return "missing"
    told = _LATER_SEEN.search(behind) or _SOMEBODY_SEES.search(before) or not re.search(r"\w", before + behind)
    return "perhaps" if told else None


def _counts_fewer(text: str) -> bool:
    """Whether it gives two counts of GPUs, and the one that is seen is the lower one."""
    if not _BY_A_TOOL.search(text) or _SEVERAL_NODES.search(text):
        return False
    owned = max((_number(found[1]) for found in _OWNED.finditer(text)), default=0)
    return any(_number(found[1]) < owned for found in _SHOWS.finditer(text))


def _number(word: str) -> int:
    return _NUMBERS.get(word.lower()) or int(word)
