"""Which placement of a model on given hardware holds 24 frames a second, and what to get if none.

Takes: a model and the GPUs of a host. Gives every placement with its memory, its predicted step and
what binds, and the one to take. Never: touches a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from talking_avatar.engine.base import FPS
from talking_avatar.engine.diffusion.config import AvatarDiTConfig, Precision
from talking_avatar.engine.diffusion.gpus import GPU_KINDS, GpuKind, Hardware
from talking_avatar.engine.diffusion.plan import (
    WORK_BYTES,
    Placement,
    PlanReport,
    decoder_bytes,
    describe,
)
from talking_avatar.engine.diffusion.step_time import OURS, Binding, Parts, Stack, parts_of

MODEL_ERROR = 0.10
"""Within which the time model meets what it was fitted to; less headroom than that is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One placement on one host.

    Attributes:
        report: Its arithmetic.
        gpu: Of the ranks.
        decoder_gpu: Of the decoder; None: it shares a rank's.
        parts: Its predicted chunk.
        rank_bytes, decoder_bytes: Needed on the fullest of the ranks' GPUs, and on the decoder's.
    """

    report: PlanReport
    gpu: GpuKind
    decoder_gpu: GpuKind | None
    parts: Parts
    rank_bytes: int
    decoder_bytes: int

    @property
    def placement(self) -> Placement:
        return self.report.placement

    @property
    def gpus_held(self) -> dict[str, int]:
        """GPUs by kind."""
        held = {self.gpu.name: self.placement.tp}
        if self.decoder_gpu is not None:
            held[self.decoder_gpu.name] = held.get(self.decoder_gpu.name, 0) + 1
        return held

    @property
    def fps(self) -> float:
        """Frames a second that it can make."""
        return self.report.config.frames_per_chunk / self.parts.step_s

    @property
    def headroom(self) -> float:
        """By how much it is faster than what is shown; negative: slower."""
        return self.fps / FPS - 1

    @property
    def is_tight(self) -> bool:
        """Whether it holds by less than the model's own error."""
        return 0 <= self.headroom < MODEL_ERROR

    @property
    def largest_bytes(self) -> int:
        """Needed on the fullest GPU."""
        return max(self.rank_bytes, self.decoder_bytes)

    @property
    def fits(self) -> bool:
        """Whether the memory is enough."""
        decoder_gpu = self.decoder_gpu or self.gpu
        return (
            self.rank_bytes <= self.gpu.memory_bytes
            and self.decoder_bytes <= decoder_gpu.memory_bytes
        )

    @property
    def is_live(self) -> bool:
        """Whether it fits and holds 24 frames a second, as predicted."""
        return self.fits and self.headroom >= 0

    @property
    def binds(self) -> Binding | str:
        """What decides: memory where it does not fit, else the largest part."""
        return self.parts.binds if self.fits else "memory"

    @property
    def verdict(self) -> str:
        """Say it in words."""
        if not self.fits:
            return f"REFUSED: {self.largest_bytes / 1e9:.0f} GB"
        if self.headroom < 0:
            return f"REFUSED: {self.fps:.1f} fps"
        return "live, tight" if self.is_tight else "live"


@dataclass(frozen=True, slots=True)
class HardwarePlan:
    """All placements on one host.

    Attributes:
        hardware: The host.
        candidates: Every placement, fewest GPUs first.
    """

    hardware: Hardware
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The live one with the fewest GPUs and headroom beyond the model's error.

        Where none has that, the fastest that is live at all; None if none is.
        """
        live = [candidate for candidate in self.candidates if candidate.is_live]
        return min(
            live,
            key=lambda c: (c.is_tight, 0 if c.is_tight else c.placement.gpus_held, c.parts.step_s),
            default=None,
        )

    @property
    def nearest(self) -> Candidate:
        """The one to talk about when none is live: the fastest that fits, or else the fastest."""
        return min(self.candidates, key=lambda c: (not c.fits, c.parts.step_s))


def candidate(
    config: AvatarDiTConfig,
    placement: Placement,
    gpu: GpuKind,
    *,
    decoder_gpu: GpuKind | None = None,
    stack: Stack = OURS,
    precision: Precision = "fp8",
) -> Candidate:
    """Work out one placement. ``decoder_gpu`` None: of the ranks' kind, where it has its own."""
    if placement.decoder == "own":
        decoder_gpu = decoder_gpu or gpu
    report = describe(
        config, placement.tp, decoder=placement.decoder, precision=precision,
        kv_precision="fp8" if precision == "fp8" else "bf16",
    )  # fmt: skip
    decoder = decoder_bytes(config, dtype_bytes=2)
    is_shared = placement.decoder == "shared"
    return Candidate(
        report=report,
        gpu=gpu,
        decoder_gpu=None if is_shared else decoder_gpu,
        parts=parts_of(
            config, gpu, placement.tp,
            stack=stack, decoder_gpu=None if is_shared else decoder_gpu, precision=precision,
        ),
        rank_bytes=report.rank_bytes + (decoder if is_shared else 0),
        decoder_bytes=0 if is_shared else decoder + WORK_BYTES,
    )  # fmt: skip


def plan_for(
    config: AvatarDiTConfig,
    hardware: Hardware,
    *,
    stack: Stack = OURS,
    precision: Precision = "fp8",
) -> HardwarePlan:
    """Work out every placement of a model on a host."""
    placements = []
    if hardware.decoder_kind is not None:
        placements = [Placement(tp) for tp in range(1, hardware.num + 1)]
    else:
        for held in range(1, hardware.num + 1):
            placements += [Placement(held - 1)] if held > 1 else []
            placements += [Placement(held, "shared")]
    return HardwarePlan(
        hardware,
        tuple(
            candidate(
                config, placement, hardware.kind, decoder_gpu=hardware.decoder_kind,
                stack=stack, precision=precision,
            )
            for placement in placements
        ),
    )  # fmt: skip


def what_would_do(config: AvatarDiTConfig, *, stack: Stack = OURS) -> tuple[Candidate, ...]:
    """Find the smallest live placement on each kind of GPU, cheapest in GPUs first."""
    found = [
        best
        for kind in GPU_KINDS.values()
        if (best := plan_for(config, Hardware(f"8x{kind.name}", kind, 8), stack=stack).best)
    ]
    return tuple(sorted(found, key=lambda c: (c.placement.gpus_held, c.parts.step_s)))


def refusal(config: AvatarDiTConfig, plan: HardwarePlan, *, stack: Stack = OURS) -> str:
    """Say why nothing on a host holds 24 frames a second, and what would."""
    near = plan.nearest
    why = (
        f"the best placement, {near.placement.name}, makes {near.fps:.1f} fps "
        f"({near.parts.step_s * 1e3:.0f} ms a step; {config.chunk_s * 1e3:.1f} are allowed; "
        f"bottleneck: {near.binds})"
        if near.fits
        else f"no placement fits: {near.placement.name} needs {near.largest_bytes / 1e9:.0f} GB "
        f"on one GPU, {near.gpu.memory_bytes / 1e9:.0f} GB are there"
    )
    others = ", ".join(
        f"{c.placement.gpus_held}x{c.gpu.name} ({c.placement.name}, {c.fps:.1f} fps)"
        for c in what_would_do(config, stack=stack)
    )
    what = f"These would, at full power: {others}" if others else "No known GPUs would, up to eight"
    return f"{plan.hardware.name} cannot hold {FPS} fps of {config.name}: {why}. {what}"
