"""What the live view in a browser and the agent both ask of whoever calls over HTTP."""

from __future__ import annotations

import hashlib
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


def digest(text: str) -> bytes:
    """What is compared in place of a token, so that neither its length nor its letters show in the time taken."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
