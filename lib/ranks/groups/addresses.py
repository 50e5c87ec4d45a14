"""The address of this host that ranks on other hosts can reach."""

import contextlib
import ipaddress
import socket

_FAR = "198.51.100.1"  # of no host: kept for examples by RFC 5737


def own_address(master: str) -> str:
    """Give the address from which packets to `master` leave; if that is this host, to anywhere.

    Many systems write their own name into /etc/hosts with a loopback address, 127.0.1.1: on the
    first host MASTER_ADDR then leads nowhere else, and ranks on other hosts could not come to it.
    """
    address = _towards(master)
    named = master not in ("localhost", "127.0.0.1", "::1")
    if named and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        with contextlib.suppress(OSError):  # this host has no network, so it is the only one
            return _towards(_FAR)
    return address


def _towards(host: str) -> str:
    family, kind, *_, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as end:
        end.connect(address)  # sends nothing: it asks which way the packets would leave
        return end.getsockname()[0]
