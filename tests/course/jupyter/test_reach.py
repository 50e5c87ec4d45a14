"""What a reader is told who sits elsewhere: over ssh, in a container, in a pod."""

import socket

import pytest

from lib.course.jupyter import reach
from lib.course.tools import lab

HERE = socket.gethostname()
SSH = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22", "USER": "mae"}


def server(hostname="localhost", **more):
    return {"port": 8888, "hostname": hostname, "base_url": "/", "token": "t", **more}


def test_the_address_is_one_that_answers():
    """With --ip the printed address named localhost, where nobody may listen."""
    at = lambda *words, **more: reach.address(server(*words, **more), "lab")
    assert at() == at("127.0.0.1") == at("0.0.0.0") == "http://localhost:8888/lab?token=t"
    assert at("10.0.0.2") == "http://10.0.0.2:8888/lab?token=t"
    assert at("fe80::2") == "http://[fe80::2]:8888/lab?token=t"
    assert at(secure=True, token="") == "https://localhost:8888/lab"
    assert reach.address(server(base_url="/me/"), "lab/tree/a") == (
        "http://localhost:8888/me/lab/tree/a?token=t"
    )


def test_over_ssh_the_tunnel_has_user_host_and_port():
    said = reach.advice(server(), "lab", SSH, "")
    assert said[0] == f"From your own machine, first: ssh -L 8888:localhost:8888 mae@{HERE}"
    assert "VS Code" in " ".join(said)
    odd = {**SSH, "SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 2222"}
    assert (
        f"ssh -p 2222 -L 8888:localhost:8888 mae@{HERE}"
        in reach.advice(server(), "lab", odd, "")[0]
    )
    assert reach.advice(server(), "lab", {}, "") == []


def test_where_jupyterlab_listens_on_all_addresses_the_machine_is_named():
    (said,) = reach.advice(server("0.0.0.0"), "lab", {}, "")
    assert said == f"From other machines: http://{HERE}:8888/lab?token=t"


def test_in_a_container_the_port_is_published_and_all_addresses_are_listened_on():
    said = "\n".join(reach.advice(server(), "lab", {}, "docker"))
    assert "docker run -p 8888:8888" in said
    assert '`make lab ARGS="--ip 0.0.0.0 --port 8888"`' in said
    said = "\n".join(reach.advice(server(port=9000), "lab", {}, "docker"))
    assert "-p 9000:9000" in said and "--port 9000" in said and "8888" not in said
    (said,) = reach.advice(server("0.0.0.0", port=9000), "lab", SSH, "docker")
    assert "docker run -p 9000:9000" in said and "make lab" not in said
    (said,) = reach.advice(server(), "lab", {}, "kubernetes")
    assert f"kubectl port-forward {HERE} 8888:8888" in said


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "docker"),
        ("proc/1/cgroup", "12:cpu:/docker/ab\n", "docker"),
        ("proc/1/cgroup", "0::/kubepods/ab\n", "docker"),
        ("proc/1/cgroup", "0::/init.scope\n", ""),
        ("nothing", "", ""),
    ],
)
def test_a_container_is_known_by_its_marks(tmp_path, file, text, found):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert reach.container({}, tmp_path) == found
    assert reach.container({"KUBERNETES_SERVICE_HOST": "a"}, tmp_path) == "kubernetes"


def test_the_greeting_leads_to_the_course_or_to_a_chapter(monkeypatch):
    monkeypatch.setattr(reach, "container", lambda *_: "docker")
    said = lab.greeting(server(), "", display=False).splitlines()
    assert said[1:4] == ["The course is at", "", "    http://localhost:8888/lab?token=t"]
    assert said[-1] == "Ctrl-C ends JupyterLab and every rank; it asks first."
    assert any("docker run" in line for line in said)
    said = lab.greeting(server(), "my-chapters/03-fsdp.ipynb", display=True)
    assert "Chapter 3 is open in your browser, at\n\n" in said and "docker" not in said
    assert "http://localhost:8888/lab/tree/my-chapters/03-fsdp.ipynb?token=t\n" in said
