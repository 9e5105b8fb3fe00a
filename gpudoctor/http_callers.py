"""What the live view in a browser and the agent both ask of whoever calls over HTTP."""

from __future__ import annotations

import hashlib
import re
from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1
    return (mapped or address).is_loopback


def host_of_header(header: str) -> str:
    """The host that a Host header names, in lower case and without its port; empty for what is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_host(header: str) -> bool:
    """Whether a Host header is HOST or HOST:PORT, as a client that was not made to break something sends it."""
    try:
        parts = urlsplit(f"//{header}")
        return bool(re.fullmatch(r"[A-Za-z0-9._:%\[\]-]{1,255}", header)) and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def digest(text: str) -> bytes:
    """What is compared in place of a token, so that neither its length nor its letters show in the time taken."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
