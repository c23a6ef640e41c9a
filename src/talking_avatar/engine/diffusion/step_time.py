"""How long a chunk takes on GPUs: a sum of parts, each with its own physics.

Takes: a model, a GPU, how many ranks, and how well the software is made (`Stack`). Gives `Parts`.
Never: measures. Five constants are fitted, in `calibration`; everything else is arithmetic, a data
sheet, or a published or measured time that is named here.

    products   FLOPs / (ranks x peak x efficiency)
    attention  FLOPs / (ranks x BF16 peak x 0.45)
    wires      bytes over the link / (rate x efficiency), less what is hidden behind products
    upkeep     of the cache: published or measured time, by shard and memory rate
    launch     one fixed time a layer call: norms, quantization, gaps; more ranks don't shorten it
    decoder    FLOPs / (BF16 peak x 0.50); on a rank's GPU it takes time from the ranks

It holds for models large enough to fill a GPU, about a billion parameters and more: below that,
everything is launch and latency, and these are lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, Precision
from talking_avatar.engine.diffusion.gpus import GPU_KINDS, GpuKind
from talking_avatar.engine.diffusion.layout import padded_heads

Binding: TypeAlias = Literal["products", "attention", "wires", "upkeep", "launch", "decoder"]

ATTENTION_EFFICIENCY = 0.45
"""Of the BF16 peak, split over keys: published as about 6 % of 240.9 ms on four H100 (445
TFLOP/s); this package's kernel on one H200 reaches 456."""
DECODER_EFFICIENCY = 0.50
"""Of the BF16 peak: 56.4 TFLOP in the published 114 ms on one H100."""
DECODER_FLOPS = 56.4e12
"""Of a Wan2.2-class decoder for four frames of 704 x 1088."""
FLOW_DECODER_FLOPS = 2.4e12
"""What the small decoder's measured 4.9 ms on one H200 amount to at that efficiency."""
SMALLEST_PARAMETERS = 1_000_000_000
"""On the tokens' path; below it, times are lower bounds."""
_UPKEEP_AT = (GPU_KINDS["H100"], 4)
"""Where the upkeep of a `Stack` is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """How a step is put together.

    Attributes:
        name: For people.
        upkeep_s: Of the 57B model's cache in a step, on one of four H100.
        fuses_wires: Whether products overlap their all-reduce.
        return_bytes: Of one value that an all-reduce sends back: 2 in BF16, 1 in FP8.
    """

    name: str
    upkeep_s: float
    fuses_wires: bool = False
    return_bytes: int = 2


BASELINE = Stack(name="baseline", upkeep_s=69.7e-3)
PRODUCTION = Stack(name="production", upkeep_s=6.2e-3)
FUSED = Stack(name="fused", upkeep_s=6.2e-3, fuses_wires=True)
OURS = Stack(name="talking-avatar", upkeep_s=0.07e-3, return_bytes=1)
"""As measured on one H200: the cache is written, not maintained; rows come back normalized, in FP8;
products are not fused with their all-reduce yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What is fitted; see `calibration` for bounds and residuals.

    Attributes:
        product_efficiency: Of the tensor cores' peak that products reach, hot, in a step.
        launch_us: Microseconds a layer call beside products, attention and wires.
        link_efficiency: Of a link's rate that an all-reduce reaches.
        hidden_share: Of the wires that a fused product hides.
        contention: Of the decoder's time that a shared GPU's ranks lose.
    """

    product_efficiency: float
    launch_us: float
    link_efficiency: float
    hidden_share: float
    contention: float


CONSTANTS = Constants(
    product_efficiency=0.600,
    launch_us=34.1,
    link_efficiency=0.371,
    hidden_share=0.195,
    contention=0.706,
)
"""Fitted to the published table and one measured step, 2026-12-01; a test fits them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One chunk in seconds.

    Attributes:
        products, attention, wires, upkeep, launch: Of the ranks.
        decoder: Of the decoder alone on its GPU.
        shares_gpu: Whether that is a rank's.
        contention: What the ranks lose to it then.
    """

    products: float
    attention: float
    wires: float
    upkeep: float
    launch: float
    decoder: float
    shares_gpu: bool
    contention: float

    @property
    def denoise_s(self) -> float:
        """Of the ranks, waiting for a decoder on their GPU included."""
        own = self.products + self.attention + self.wires + self.upkeep + self.launch
        return own + (self.contention if self.shares_gpu else 0.0)

    @property
    def step_s(self) -> float:
        """Between two chunks: the slower of ranks and decoder, which work at the same time."""
        return max(self.denoise_s, 0.0 if self.shares_gpu else self.decoder)

    @property
    def binds(self) -> Binding:
        """What is largest: what to improve first."""
        if not self.shares_gpu and self.decoder > self.denoise_s:
            return "decoder"
        names: tuple[Binding, ...] = ("products", "attention", "wires", "upkeep", "launch")
        largest = max(names, key=lambda name: float(getattr(self, name)))
        is_decoder = self.shares_gpu and self.contention > getattr(self, largest)
        return "decoder" if is_decoder else largest


def parts_of(
    config: AvatarDiTConfig,
    gpu: GpuKind,
    tp: int,
    *,
    stack: Stack = OURS,
    decoder_gpu: GpuKind | None = None,
    constants: Constants = CONSTANTS,
    precision: Precision = "fp8",
) -> Parts:
    """Predict one chunk.

    Args:
        config: The model.
        gpu: Of the ranks.
        tp: Ranks.
        stack: How well the software is made.
        decoder_gpu: A GPU of its own for the decoder; None: it shares a rank's.
        constants: What was fitted.
        precision: Of the products.
    """
    peak = gpu.fp8_flops if precision == "fp8" else gpu.bf16_flops
    padding = padded_heads(config, tp) / config.num_heads
    share = padding / tp
    num_calls = config.num_layers * len(config.sigmas)
    decoder = decoder_flops(config) / (decoder_gpu or gpu).bf16_flops / DECODER_EFFICIENCY
    return Parts(
        products=config.linear_flops * share / (peak * constants.product_efficiency),
        attention=config.attention_flops * share / (gpu.bf16_flops * ATTENTION_EFFICIENCY),
        wires=_wires_s(config, gpu, tp, stack, constants),
        upkeep=_upkeep_s(config, gpu, share, stack),
        launch=num_calls * constants.launch_us * 1e-6,
        decoder=decoder,
        shares_gpu=decoder_gpu is None,
        contention=constants.contention * decoder,
    )


def decoder_flops(config: AvatarDiTConfig) -> float:
    """Estimate the decoder's work for one chunk, by pixels and by the square of its width."""
    pixels = config.width * config.height / (704 * 1088)
    if config.decoder == "flow":
        return FLOW_DECODER_FLOPS * pixels
    return DECODER_FLOPS * pixels * (config.codec.decoder_width / 256) ** 2


def _wires_s(
    config: AvatarDiTConfig, gpu: GpuKind, tp: int, stack: Stack, constants: Constants
) -> float:
    """Two all-reduces a layer, each as a reduce-scatter of BF16 and an all-gather."""
    num_calls = 2 * config.num_layers * len(config.sigmas)
    values = config.chunk_tokens * config.hidden * (tp - 1) / tp
    shown = 1 - (constants.hidden_share if stack.fuses_wires else 0.0)
    rate = gpu.link_bytes_per_s * constants.link_efficiency
    return num_calls * values * (2 + stack.return_bytes) * shown / rate


def _upkeep_s(config: AvatarDiTConfig, gpu: GpuKind, share: float, stack: Stack) -> float:
    """Bound by memory: as the keys of one rank, and as the rate of its memory."""
    at, at_tp = _UPKEEP_AT
    keys = config.attended * config.inner * config.num_layers * len(config.sigmas)
    relative = keys / (5_788 * 6_144 * 240)
    rate = at.memory_bytes_per_s / gpu.memory_bytes_per_s
    return stack.upkeep_s * relative * share * at_tp * rate


def constant_names() -> tuple[str, ...]:
    """Name what is fitted, in order."""
    return tuple(field.name for field in fields(Constants))
