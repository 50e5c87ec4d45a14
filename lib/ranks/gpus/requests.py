"""What a caller may ask of World(...), and what it is told where it cannot be had."""

from dataclasses import dataclass

from lib.ranks.gpus import devices


@dataclass
class Request:
    """What the caller of World(...) asked for, and what this machine has for it."""

    size: int
    device: str | None
    backend: str | None
    gpus: list[int] | None
    kind: str | None  # the type of the GPUs, None without
    own: str | None  # their own backend, None without

    @property
    def for_gpus(self) -> bool:
        """Tell whether somebody asked for GPUs; else they are taken only where enough are free."""
        cpu = self.device in (None, "cpu") and self.backend in (None, "gloo")
        return not cpu or self.gpus is not None

    def __str__(self):
        words = {"device": self.device, "backend": self.backend, "gpus": self.gpus}
        keywords = [f", {name}={word!r}" for name, word in words.items() if word is not None]
        return f"World({self.size!r}{''.join(keywords)})"

    def check_words(self) -> None:
        """Raise ValueError for words that mean nothing on any machine."""
        if (
            isinstance(self.size, bool)
            or not isinstance(self.size, int)
            or not 1 <= self.size <= 64
        ):
            raise ValueError(
                f"World({self.size!r}): the number of ranks is a whole number from 1 to 64."
            )
        known = self.device in (None, "cpu", "cuda", self.kind)
        if not known or self.backend not in (None, "gloo", "nccl", self.own):
            raise ValueError(
                f"{self}: the device is 'cpu' or {self.kind or 'cuda'!r}, "
                f"the backend 'gloo' or {self.own or 'nccl'!r}."
            )
        if self.gpus is None:
            return
        numbers = self.gpus if isinstance(self.gpus, list | tuple | range) else []
        if not numbers or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
            raise ValueError(f"{self}: gpus is a list of GPU numbers, such as gpus=[4, 5, 6, 7].")
        double = sorted(n for n in {*numbers} if list(numbers).count(n) > 1)
        if double:
            raise ValueError(f"{self} names {_listed(double)} more than once. Name each one once.")

    def check_machine(self, slow: bool) -> None:
        """Raise ValueError where GPUs are asked for and cannot be had."""
        cpu = f"World({self.size}, device='cpu')"
        if self.device == "cpu" and self.gpus is not None:
            raise ValueError(f"{self}: CPU ranks take no GPU. Leave out device='cpu', or gpus.")
        if self.device == "cpu":
            raise ValueError(f"{self}: NCCL carries data between GPUs alone. Take {cpu}.")
        if slow:
            raise ValueError(
                f"{self} with slow_motion: slow motion stretches the time of CPU ranks, and needs "
                f"no GPU. Take World({self.size}, slow_motion=...)."
            )
        if devices.cpu_forced():
            raise ValueError(
                f"{self} asks for GPUs, and RANKS_DEVICE=cpu in the environment keeps every World "
                f"on the CPU. Unset it, or take {cpu}."
            )
        if not self.kind:
            raise ValueError(
                f"{self} needs a GPU{self._each}; this machine has no GPU for PyTorch. Take {cpu}."
            )
        if self.device not in (None, self.kind):
            raise ValueError(f"{self}: the GPUs of this machine are {self.kind!r}, not 'cuda'.")
        if self.backend not in (None, "gloo") and not self.own:
            raise ValueError(
                f"{self}: this PyTorch was built without NCCL. Take backend='gloo', "
                f"device={self.kind!r}, or {cpu}."
            )

    @property
    def _each(self) -> str:
        return "" if self.backend in (None, "gloo") else " for each rank"

    def why_cpu(self, slow: bool) -> str | None:
        """Say why CPU ranks are taken where nobody asked for GPUs; None where GPUs are tried."""
        if self.device == "cpu" or self.backend == "gloo":
            return ""
        if slow:
            return "slow motion needs no GPU" if self.kind else ""
        if devices.cpu_forced():
            return "RANKS_DEVICE=cpu is set" if self.kind else ""
        if not self.own:
            return "this PyTorch was built without NCCL" if self.kind else ""
        return None

    def check_numbers(self, count: int) -> None:
        """Raise ValueError where `count` GPUs cannot be what was asked for."""
        size, have = self.size, f"this machine has {counted(count)}"
        share = f"World({size}, backend='gloo', device={self.kind!r}"
        if self.gpus is None:
            if not count or (count < size and self.backend not in (None, "gloo")):
                other = f", World({count}), or {share})" if count else ""
                raise ValueError(
                    f"{self} needs a GPU{self._each}; {have}. "
                    f"Take World({size}, device='cpu'){other}."
                )
            return
        strange = [number for number in self.gpus if not 0 <= number < count]
        if strange:
            last = f", numbered 0 to {count - 1}" if count > 1 else ", number 0" if count else ""
            raise ValueError(f"{self} names {_listed(strange)}; {have}{last}.")
        named = len(self.gpus)
        if named > size:
            raise ValueError(f"{self} names {counted(named)} for {_ranks(size)}: name {size}.")
        if named < size and self.own and self.backend != "gloo":
            raise ValueError(
                f"{self} names {counted(named)} for {_ranks(size)}, and each rank needs one of "
                f"its own with NCCL. Name {size}, or let ranks share GPUs: "
                f"{share}, gpus={list(self.gpus)})."
            )


def counted(count: int) -> str:
    """Write a number of GPUs: `no working GPU`, `1 GPU`, `4 GPUs`."""
    return "no working GPU" if not count else f"{count} GPU{'s' if count > 1 else ''}"


def _listed(numbers: list[int]) -> str:
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _ranks(size: int) -> str:
    return f"{size} rank{'s' if size > 1 else ''}"
