"""The GPUs that a placement may use, from their makers' data sheets.

Dense rates, without sparsity. A power cap lowers the clock under load: power goes with about its
cube, so a chip at half its power still computes at four fifths of its rate. Memory and links keep
theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """One kind of GPU.

    Attributes:
        name: As a rate card names it.
        fp8_flops, bf16_flops: Dense, FP32 accumulation, at full power.
        memory_bytes: That a process can use.
        memory_bytes_per_s: Of its own memory.
        link_bytes_per_s: To its peers, one direction: NVLink, or else PCIe.
    """

    name: str
    fp8_flops: float
    bf16_flops: float
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float

    def capped(self, share: float) -> GpuKind:
        """Give the same GPU under a power cap.

        Args:
            share: Of its rated power, above 0.

        Raises:
            ValueError: It is not between 0.2 and 1.
        """
        if not 0.2 <= share <= 1:
            raise ValueError(f"a power cap of {share:g} must be between 0.2 and 1 of full power")
        clock = share ** (1 / 3)
        return replace(self, fp8_flops=self.fp8_flops * clock, bf16_flops=self.bf16_flops * clock)


def _kind(
    name: str, fp8: float, bf16: float, memory_gb: float, bandwidth_tb: float, link_gb: float
) -> GpuKind:
    return GpuKind(
        name=name,
        fp8_flops=fp8 * 1e12,
        bf16_flops=bf16 * 1e12,
        memory_bytes=int(memory_gb * 1e9),
        memory_bytes_per_s=bandwidth_tb * 1e12,
        link_bytes_per_s=link_gb * 1e9,
    )


GPU_KINDS: MappingProxyType[str, GpuKind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            _kind("H100", 1979, 989, 85.0, 3.35, 450),  # SXM, NVLink 4
            _kind("H200", 1979, 989, 150.1, 4.8, 450),
            _kind("B200", 4500, 2250, 191.0, 8.0, 900),  # NVLink 5
            _kind("L40S", 733, 362, 48.0, 0.864, 26),  # PCIe 4 x16
            _kind("RTX4090", 330, 165, 25.2, 1.008, 13),  # PCIe 4 x16, no peer access
        )
    }
)
"""Every GPU that has a name here."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPUs of one host.

    Attributes:
        name: As it was written.
        kind, num: Those that denoise, and may decode.
        decoder_kind: One further GPU of another kind that decodes; None: there is none.
    """

    name: str
    kind: GpuKind
    num: int
    decoder_kind: GpuKind | None = None

    @classmethod
    def parse(cls, words: str, *, power_cap: float = 1.0) -> Hardware:
        """Read ``4xH100``, or ``2xH200+1xL40S`` with the decoder on the second kind.

        Args:
            words: What there is.
            power_cap: Share of full power that every GPU gets.

        Raises:
            ValueError: It says something else, or names a GPU that is not known.
        """
        parts = [_part(word, words) for word in words.split("+")]
        kinds = [kind.capped(power_cap) for _, kind in parts]
        if len(parts) > 2 or (len(parts) == 2 and parts[1][0] != 1):
            raise ValueError(
                f"hardware {words!r}: after the GPUs that denoise, one of another kind may follow "
                "for the decoder, such as 2xH200+1xL40S"
            )
        num = parts[0][0]
        if not 1 <= num <= 8:
            raise ValueError(f"hardware {words!r}: one host has 1 to 8 GPUs, not {num}")
        return cls(words, kinds[0], num, kinds[1] if len(kinds) == 2 else None)


def check_kinds(names: Iterable[str]) -> None:
    """Refuse names that are none of the GPUs known, as a rate's may be.

    Raises:
        ValueError: Naming it, and those known.
    """
    for name in names:
        if name not in GPU_KINDS:
            raise ValueError(f"no GPU is called {name!r}; known are {', '.join(GPU_KINDS)}")


def _part(word: str, words: str) -> tuple[int, GpuKind]:
    match = re.fullmatch(r"\s*(?:(\d+)\s*x)?\s*([A-Za-z]\w*(?:[ -]\w+)*)\s*", word)
    name = "" if match is None else re.sub(r"[ -]", "", match[2]).upper()
    if match is None or name not in GPU_KINDS:
        known = ", ".join(GPU_KINDS)
        raise ValueError(f"hardware {words!r} must be like 4xH100; the GPUs known are {known}")
    return int(match[1] or 1), GPU_KINDS[name]
