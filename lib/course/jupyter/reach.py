"""How a reader reaches JupyterLab: from this machine, over ssh, or in a container."""

import getpass
import os
import re
import socket
from pathlib import Path

EVERYWHERE = ("0.0.0.0", "::", "*", "")  # JupyterLab listens on all addresses
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MARKS = ("/.dockerenv", "/run/.containerenv")  # of Docker and of Podman
_CONTAINED = re.compile(r"docker|kubepods|containerd|libpod|lxc")


def container(environ=os.environ, root: Path = Path("/")) -> str:
    """Return "kubernetes", "docker" for any other container, "" for a machine of its own."""
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if any((root / mark[1:]).exists() for mark in MARKS):
        return "docker"
    try:
        contained = _CONTAINED.search((root / "proc/1/cgroup").read_text())
    except OSError:  # another system than Linux
        return ""
    return "docker" if contained else ""


def host(server: dict) -> str:
    """Return the name under which this machine itself reaches the server."""
    name = server.get("hostname", "localhost")
    return "localhost" if name in (*EVERYWHERE, *LOOPBACK) else name


def address(server: dict, page: str, name: str = "") -> str:
    """Return the address of a page, "lab" for example, with the token that lets a reader in."""
    scheme = "https" if server.get("secure") else "http"
    name = name or host(server)
    name = f"[{name}]" if ":" in name else name
    token = f"?token={server['token']}" if server.get("token") else ""
    return f"{scheme}://{name}:{server['port']}{server.get('base_url', '/')}{page}{token}"


def advice(server: dict, page: str, environ=os.environ, contained: str | None = None) -> list[str]:
    """Return the lines that say what to type on the reader's own machine; none where it is this."""
    contained = container(environ) if contained is None else contained
    port, everywhere = server["port"], server.get("hostname", "localhost") in EVERYWHERE
    if contained == "kubernetes":
        forward = f"kubectl port-forward {socket.gethostname()} {port}:{port}"
        return [f"This is a pod. From your own machine, first: {forward}"]
    if contained and everywhere:
        return [f"This is a container: the address is reached from outside where the container "
                f"was started with `docker run -p {port}:{port}`."]  # fmt: skip
    if contained:
        return ["This is a container. To reach JupyterLab from outside, start the container with",
                f"`docker run -p {port}:{port} ...`, and JupyterLab in it with",
                f'`make lab ARGS="--ip 0.0.0.0 --port {port}"`.']  # fmt: skip
    lines = []
    if everywhere:
        lines.append(f"From other machines: {address(server, page, socket.gethostname())}")
    if environ.get("SSH_CONNECTION"):
        lines += [
            f"From your own machine, first: {_tunnel(port, environ)}",
            "Use the name by which your ssh knows this machine, if it is another. VS Code and",
            f"PyCharm, connected to this machine, forward port {port} by themselves.",
        ]
    return lines


def _tunnel(port: int, environ) -> str:
    """Return the ssh command that brings the server's port to the reader's machine."""
    gate = environ["SSH_CONNECTION"].split()[-1]  # "client port server port"
    other = f"-p {gate} " if gate.isdecimal() and gate != "22" else ""
    user = environ.get("USER") or getpass.getuser()
    return f"ssh {other}-L {port}:localhost:{port} {user}@{socket.gethostname()}"
