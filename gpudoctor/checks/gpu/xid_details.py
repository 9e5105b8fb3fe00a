"""What the numbers in an Xid's line tell beyond its code: the registers of Xid 74, the units of NVLink 5."""

from __future__ import annotations

import re

# NVIDIA, "Xid and SXid errors": registers of Xid 74, counted from 1, bits from the lowest; what each bit means
_PARITY = "ECC or parity error inside: a part that fails if it comes more than twice"
_MECHANICAL = "perhaps the contact: check the link's mechanical connection, reseat"
_FOLLOWS = "follows from another error"
_REPEATS = "matters if it comes again"
XID_74_BITS: tuple[tuple[int, tuple[int, ...], str], ...] = (
    (1, (4, 5), _PARITY),
    (1, (21, 22), "marginal signal: check the link's mechanical connection"),
    (1, (8, 9, 12, 16, 17, 24, 28), _MECHANICAL),
    (1, (1, 20), _FOLLOWS),
    (1, (27, 29), _REPEATS),
    (3, (0, 1, 2, 6), _PARITY),
    (3, (13,), "never seen in production: report it"),
    (3, (16, 17, 18, 19), _REPEATS),
    (4, (16, 17, 18), _FOLLOWS),
    (5, (18, 19, 21, 22, 24, 25, 27, 28), _PARITY),
    (5, (20, 23, 26, 29), "many corrected errors, nothing lost"),
)
# The unit of the NVLink 5 controller that each code speaks of; source: NVIDIA's Xid catalogue
NVLINK5_UNITS = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}
# ending a program's channels (Xid 45) is what a fatal error of NVLink 5 does, and a non-fatal one does not
CHANNEL_REMOVED = 45

_REGISTERS = re.compile(r"on link (\d{1,2}) ?\((0x[0-9a-f]{1,8}(?:, ?0x[0-9a-f]{1,8}){0,6})", re.IGNORECASE)
_STATUS = re.compile(r"\bLink (-?\w{1,4}) \((0x[0-9a-f]{1,8})|\((0x[0-9a-f]{8})\b", re.IGNORECASE)


def nvlink_detail(code: int, said: str) -> str | None:
    """What the line of an NVLink Xid tells in its numbers, in words; None where it has none.

    >>> nvlink_detail(74, "NVLink: fatal error detected on link 6(0x200000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)")
    "link 6: marginal signal: check the link's mechanical connection (register 1, bit 21)"
    >>> nvlink_detail(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0 0x0 0x0 0x0 0x0)")
    'NETIR, link 8, subcode 4'
    """
    if code == 74:
        return _registers(said)
    unit = NVLINK5_UNITS.get(code)
    found = _STATUS.search(said) if unit else None
    if unit is None or found is None:
        return unit
    link = f", link {int(found[1])}" if found[1] and found[1].isdecimal() else ""
    # nvidia's open kernel module: bits 20 to 25 of the first status word are the subcode
    return f"{unit}{link}, subcode {int(found[2] or found[3], 16) >> 20 & 0x3F}"


def _registers(said: str) -> str | None:
    found = _REGISTERS.search(said)
    if found is None:
        return None
    values = [int(word, 16) for word in found[2].replace(" ", "").split(",")]
    told: dict[str, list[str]] = {}
    for register, bits, words in XID_74_BITS:
        value = values[register - 1] if register <= len(values) else 0
        for bit in bits:
            if value >> bit & 1:
                told.setdefault(words, []).append(f"register {register}, bit {bit}")
    if not told:
        return f"link {found[1]}: registers {' '.join(found[2].replace(' ', '').split(','))}"
    return f"link {found[1]}: " + "; ".join(f"{words} ({', '.join(places)})" for words, places in told.items())
