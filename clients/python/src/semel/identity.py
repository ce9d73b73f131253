"""Who sent a request, and whose its key is: caller, scope and the id of a key. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import unicodedata
from typing import NamedTuple, Optional, Tuple

from .problems import Problem

CALLER_CHARS_MAX = 255
_POSING = ("authorization:", "cookie:", "shared:")


def lp(content: bytes) -> bytes:
    """The content behind its length in eight bytes, so that no two lists of parts give the same bytes."""
    return len(content).to_bytes(8, "big") + content


class Caller(NamedTuple):
    """Who sent a request, as your authentication verified it. Make one by `Caller.verified`, `hashed` or `shared`."""

    principal: str
    tenant: Optional[str] = None
    #: `verified`; `hashed`, where only a hash of the credential is known; `shared`, the same for everybody.
    credential: str = "verified"

    @classmethod
    def verified(cls, principal: str, tenant: Optional[str] = None) -> "Caller":
        """A caller that your authentication knows by name."""
        if not principal:
            raise Problem("identity-missing", "the principal is empty")
        if principal.startswith(_POSING):
            raise Problem("identity-missing", "the principal begins with the name of another kind of identity")
        return cls(principal, tenant).check()

    @classmethod
    def hashed(cls, kind: str, credential: bytes) -> "Caller":
        """A caller of which only a credential is known. `kind` is `authorization` or `cookie:NAME`."""
        if not credential:
            raise Problem("identity-missing", "send the credential that says who is calling")
        return cls(principal_of(kind, credential), None, "hashed")

    @classmethod
    def shared(cls, name: str) -> "Caller":
        """Everybody as one caller. Its keys must be random UUIDs, since nothing else keeps strangers apart."""
        return cls(f"shared:{name}", None, "shared")

    def check(self) -> "Caller":
        """Itself, or the refusal of names that no store could keep."""
        for name in (self.principal, self.tenant):
            if name is None:
                continue
            if len(name) > CALLER_CHARS_MAX or any(unicodedata.category(char) == "Cc" for char in name):
                detail = f"a principal or tenant has at most {CALLER_CHARS_MAX} characters and no control characters"
                raise Problem("identity-missing", detail)
        return self


def principal_of(kind: str, credential: bytes) -> str:
    """The principal of a credential of which only the hash is kept."""
    return f"{kind}:{hashlib.sha256(credential).hexdigest()}"


def scope_of(
    tenant: Optional[str], principal: Optional[str], endpoint: Optional[str], host: Optional[str] = None
) -> bytes:
    """The 32 bytes of a scope. A part that does not count, or that has no value, is None."""
    message = lp(b"semel.scope.1")
    parts = ((b"t", tenant), (b"p", principal), (b"e", endpoint), (b"h", None if host is None else _host_name(host)))
    for letter, part in parts:
        if part is not None:
            message += letter + lp(part.encode("utf-8"))
    return hashlib.sha256(message).digest()


def scope_by(parts: Tuple[str, ...], caller: Caller, endpoint: str, host: Optional[str] = None) -> bytes:
    """The scope of those of tenant, principal and endpoint that a profile names, and of a host where one counts."""
    tenant = caller.tenant if "tenant" in parts else None
    # A scope with neither tenant nor principal would belong to nobody.
    principal = caller.principal if "principal" in parts or tenant is None else None
    return scope_of(tenant, principal, endpoint if "endpoint" in parts else None, host)


def id_of(scope: bytes, key: str) -> bytes:
    """Sixteen bytes that stand for a key in indexes and locks. Records keep the whole scope and key, and compare them."""
    return hashlib.sha256(scope + key.encode("utf-8")).digest()[:16]


def _host_name(text: str) -> str:
    name, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit() and (":" not in name or name.endswith("]")):
        text = name
    text = (text[:-1] if text.endswith(".") else text).lower()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if bare == "localhost":
        return ""
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return text
    return ""
