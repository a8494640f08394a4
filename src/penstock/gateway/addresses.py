"""Addresses: where a backend's name may lead. What was checked is what is connected to.

A name is resolved once per connection, all its addresses are checked, and the connection goes to one of them: a name
that answers differently a moment later (DNS rebinding) leads nowhere else.
"""

from __future__ import annotations

import ipaddress
import socket

import httpcore2

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# They hold an IPv4 address in their last 32 bits too, but some network's own gateway decides where they lead.
_LOCAL_FORMS = tuple(ipaddress.ip_network(text) for text in ("64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96"))
# Where clouds keep their secrets outside of the link-local networks is among them, also for routes to private networks.
_NEVER = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "::/128", "fe80::/10", "ff00::/8",
        "fd00:ec2::254/128", "fd20:ce::254/128", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
    )
)  # fmt: skip
# Not public, whatever the interpreter's own list says: it differs from version to version.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96", "fec0::/10", "5f00::/16",
        "3fff::/20", "100::/64", "2001:db8::/32",
    )
)  # fmt: skip


def plain_address(host: str) -> Address | None:
    """The address that a host is, in its one plain form, or None for names and for every disguise of an address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return address if str(address) == host.lower() and _innermost(address) is address else None


def is_never_a_backend(address: Address) -> bool:
    """Link-local (where clouds keep their secrets), multicast, and what means nothing outside its host."""
    inner = _innermost(address)
    meant = [inner]
    if any(inner in network for network in _LOCAL_FORMS if network.version == inner.version) and int(inner) > 1:
        meant.append(ipaddress.IPv4Address(int(inner) & 0xFFFFFFFF))
    return any(form in network for form in meant for network in _NEVER if network.version == form.version)


def checked_addresses(host: str, port: int, *, private: bool) -> list[str]:
    """The addresses of a host, all of them checked; raises ``httpcore2.ConnectError`` if one must not be reached.

    A host written as a plain address is taken at its word, ``localhost`` may be the loopback interface; any other name
    leads to private networks and the loopback interface only with ``private``.
    """
    named = plain_address(host)
    if named is not None:
        addresses = [named]
    else:
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as cause:
            raise httpcore2.ConnectError(f"{host} has no address: {cause}") from cause
        addresses = [ipaddress.ip_address(answer[4][0]) for answer in answers]
    for address in addresses:
        if is_never_a_backend(address):
            raise httpcore2.ConnectError(f"{host} is {address}, where no backend may be; nothing was sent")
        inner = _innermost(address)
        known = named is not None or private or (host.lower() == "localhost" and inner.is_loopback)
        if not known and not _is_public(inner):
            raise httpcore2.ConnectError(
                f"{host} is {address}, a private address; nothing was sent. "
                f'If its route is meant to lead there, give it "private": true'
            )
    if not addresses:
        raise httpcore2.ConnectError(f"{host} has no address")
    return list(dict.fromkeys(str(address) for address in addresses))


def _is_public(address: Address) -> bool:
    return address.is_global and not any(address in net for net in _NOT_PUBLIC if net.version == address.version)


def _innermost(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that stands for it (mapped, 6to4, Teredo, NAT64), else the address."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour or address
