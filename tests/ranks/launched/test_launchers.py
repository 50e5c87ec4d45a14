"""From the environment that a launcher makes to a place among the ranks; no process is started."""

import pytest

from lib.ranks.groups import addresses
from lib.ranks.launched.launchers import Place, hosts, place, tasks_per_node

SLURM = {  # as `srun` sets it for the sixth of seven tasks on two hosts
    "SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_TASKS_PER_NODE": "4,3", "SLURM_JOB_NODELIST": "node[01-02]", "SLURM_JOB_ID": "77",
}  # fmt: skip
MPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}  # fmt: skip
TORCHRUN = {
    "RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "first", "MASTER_PORT": "29501",
}  # fmt: skip
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
STEP = {  # two of the job's eight tasks, on one of its hosts
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "node02", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "4(x2)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, (6, 8, 2, 4, "first", 29501)),
        (SLURM, (5, 7, 1, 3, "node01")),
        (SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "12"}, (5, 7, 1, 3, "10.0.0.1", 12)),
        (SLURM | STEP, (1, 2, 1, 2, "127.0.0.1")),
        (SLURM | {"SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"}, (5, 8, 1, 4, "node01")),
        (SLURM | {"SLURM_TASKS_PER_NODE": "", "SLURM_NTASKS_PER_NODE": "4"},
         (5, 7, 1, 4, "node01")),
        (SLURM | {"SLURM_TASKS_PER_NODE": ""}, (5, 7, 1, None, "node01")),
        (SLURM | {"SLURM_NODEID": ""}, (5, 7, 1, None, "node01")),
        (SLURM | {"SLURM_TASKS_PER_NODE": "", "SLURM_NTASKS_PER_NODE": "9"},
         (5, 7, 1, None, "node01")),
        (SLURM | {"SLURM_TASKS_PER_NODE": "", "SLURM_JOB_NODELIST": "node01"},
         (5, 7, 1, 7, "127.0.0.1")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"},
         (0, 1, 0, 1, "127.0.0.1")),
        (SLURM | TORCHRUN, (6, 8, 2, 4, "first", 29501)),  # srun started torchrun
        (SLURM | MPI, (5, 8, 1, 4, "node01")),  # mpirun in a SLURM job
        (SLURM | HYDRA, (3, 4, 3, 4, "127.0.0.1")),  # mpiexec in a SLURM job
        (SLURM | {"PMI_RANK": "5", "PMI_SIZE": "7"}, (5, 7, 1, 3, "node01")),  # srun --mpi=pmi2
        (MPI | {"MASTER_ADDR": "first"}, (5, 8, 1, 4, "first")),
        (HYDRA, (3, 4, 3, 4, "127.0.0.1")),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "first"}, (1, 2, None, None, "first")),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, (1, 2, 1, 2, "localhost")),
    ],
)  # fmt: skip
def test_what_each_launcher_says(environment, expected):
    assert place(environment)[: len(expected)] == expected
    assert isinstance(place(environment), Place)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "RANK is not set. Start it as: torchrun --nproc-per-node=4 script.py, or with SLURM: "
             "srun --ntasks=4"),
        ({"RANK": "0"}, "RANK is set, as torchrun does it, and WORLD_SIZE is not"),
        ({"SLURM_PROCID": "0"},
         "SLURM_STEP_NUM_TASKS or SLURM_NTASKS or SLURM_NPROCS is not: the number of ranks"),
        (TORCHRUN | {"RANK": "8"},
         "RANK is 8 and WORLD_SIZE is 8. The ranks of a world of 8 go from 0 to 7"),
        (TORCHRUN | {"WORLD_SIZE": "eight"}, "WORLD_SIZE is 'eight', which is not a whole number."),
        (TORCHRUN | {"RANK": "-1"}, "RANK is '-1', which is not a whole number."),
        (TORCHRUN | {"LOCAL_RANK": "4"},
         "LOCAL_RANK is 4, LOCAL_WORLD_SIZE is 4 and WORLD_SIZE is 8. A host has at most 8 ranks"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE is 9 and WORLD_SIZE is 8"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT is 'http', which is not a whole number."),
        (SLURM | {"SLURM_NTASKS": "6"},
         "SLURM_TASKS_PER_NODE is 4,3, which makes 7 ranks, and SLURM_NTASKS is 6."),
        (SLURM | {"SLURM_TASKS_PER_NODE": "4x2"}, "SLURM_TASKS_PER_NODE is '4x2', which is not of"),
        (SLURM | {"SLURM_NODEID": "2"}, "SLURM_NODEID is 2, and SLURM_TASKS_PER_NODE is 4,3"),
        (SLURM | {"SLURM_JOB_NODELIST": "node[1-"}, "'node[1-' is not a list of hosts"),
        (MPI, "MASTER_ADDR is not set, and Open MPI does not say on which host rank 0 is."),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
    ],
)  # fmt: skip
def test_what_is_missing_or_contradicts_itself_is_named(environment, said):
    with pytest.raises(RuntimeError) as raised:
        place(environment)
    assert said in str(raised.value) and str(raised.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("a1,b[2-3]", ["a1", "b2", "b3"]),
        ("gpu-7.cluster.example", ["gpu-7.cluster.example"]),
        ("r[1-2]n[8-10]-ib", ["r1n8-ib", "r1n9-ib", "r1n10-ib", "r2n8-ib", "r2n9-ib", "r2n10-ib"]),
        ("[1-2],x[099-100]", ["1", "2", "x099", "x100"]),
    ],
)
def test_lists_of_hosts_are_expanded(text, expected):
    assert hosts(text) == expected


@pytest.mark.parametrize("text", ["", ",", "a,,b", "a[", "a]", "a[]", "a[1-]", "a[x]", "a[[1]]"])
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(RuntimeError, match="is not a list of hosts"):
        hosts(text)


def test_ranks_of_each_host_are_expanded():
    assert tasks_per_node("4(x2),3") == [4, 4, 3]
    assert tasks_per_node("1") == [1]


def test_two_jobs_and_two_steps_of_a_job_get_ports_of_their_own():
    """All ranks of a job agree on the port; its rank, host and local rank must not matter."""
    jobs = [SLURM | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": step}
            for job in range(50) for step in "01"]  # fmt: skip
    ports = [place(job).port for job in jobs]
    assert len(set(ports)) > 97 and all(20000 <= port < 30000 for port in ports)
    elsewhere = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    assert ports == [place(job | elsewhere).port for job in jobs]
    assert place(MPI | SLURM | {"PMIX_NAMESPACE": "a", "SLURM_STEP_ID": "0"}).port == (
        place(MPI | SLURM | {"PMIX_NAMESPACE": "a"}).port
    )


class _Route:
    """A socket on a host where packets to its own name leave from loopback, as on Debian."""

    leaves_from = {"127.0.1.1": "127.0.0.1", "127.0.0.1": "127.0.0.1", "10.0.0.9": "10.0.0.7"}
    network = "10.0.0.7"

    def __init__(self, *_):
        self.to = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def connect(self, address):
        self.to = address[0]
        if self.to not in self.leaves_from and not self.network:
            raise OSError("Network is unreachable")

    def getsockname(self):
        return self.leaves_from.get(self.to, self.network), 0


@pytest.mark.parametrize(
    ("master", "network", "expected"),
    [
        ("far", "10.0.0.7", "10.0.0.7"),
        ("this-host", "10.0.0.7", "10.0.0.7"),
        ("this-host", None, "127.0.0.1"),
        ("localhost", "10.0.0.7", "127.0.0.1"),
        ("127.0.0.1", "10.0.0.7", "127.0.0.1"),
    ],
)
def test_a_host_whose_own_name_is_loopback_gives_others_an_address(
    monkeypatch, master, network, expected
):
    known = {"far": "10.0.0.9", "this-host": "127.0.1.1", "localhost": "127.0.0.1"}

    def look_up(host, port, **_):
        return [(None, None, 0, "", (known.get(host, host), port))]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses.socket, "socket", _Route)
    monkeypatch.setattr(_Route, "network", network)
    assert addresses.own_address(master) == expected
