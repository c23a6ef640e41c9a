"""What an autoregressive video DiT is, as a frozen value, and the sizes that have a name.

Takes: nothing at run time. Gives: every number of a model, and what follows from them (tokens,
parameters, FLOPs, bytes). Never: imports torch, reads a file, or knows a device.

Counting rules, used everywhere:

* A *chunk* is one latent frame: `frames_per_chunk` pictures.
* A chunk's tokens are its patches, row by row, then its conditioning tokens (speech, control).
* *attended* counts every cache slot that one query sees, its own chunk included.
* A multiplication and an addition are two FLOPs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from talking_avatar.engine.base import FPS, SAMPLE_RATE, SAMPLES_PER_FRAME
from talking_avatar.engine.diffusion.decoder.config import WanCodecConfig

Precision: TypeAlias = Literal["fp32", "bf16", "fp8"]
MEL_WINDOW = 600
"""Samples of one log-mel frame: 25 ms at 24 kHz."""
BYTES_PER_VALUE: MappingProxyType[str, int] = MappingProxyType({"fp32": 4, "bf16": 2, "fp8": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechConfig:
    """How sound becomes numbers for the speech tokens.

    Attributes:
        source: ``"mel"``: our own log-mel frames. ``"wav2vec2"``: hidden states of a wav2vec 2.0
            encoder, which needs transformers.
        num_mels: Bands of a log-mel frame, or the width of the wav2vec 2.0 encoder.
        hop: Samples between two frames, at 24 kHz. 250 divides a frame's 1,000.
        num_past, num_future: Frames of context before and after the token's own frame.
        hidden: Width of the speech net's middle layer.
        features: Numbers per token that the speech net gives to the DiT.
    """

    source: Literal["mel", "wav2vec2"] = "mel"
    num_mels: int = 26
    hop: int = 250
    num_past: int = 20
    num_future: int = 10
    hidden: int = 512
    features: int = 39

    @property
    def inputs(self) -> int:
        """Numbers per token that enter the speech net."""
        return (self.num_past + 1 + self.num_future) * self.num_mels


@dataclass(frozen=True, slots=True, kw_only=True)
class AvatarDiTConfig:
    """One model. The defaults are those of ``avatar-57b``.

    Attributes:
        name: For people and checkpoints.
        width, height: Pixels of a frame.
        frames_per_chunk: Pictures of one latent frame.
        latent_channels: Channels of the video codec's latent.
        spatial_stride: Pixels a side of one latent cell.
        patch: Latent cells a side of one token.
        hidden: Width of the residual stream.
        num_heads, head_dim: Attention; their product is the inner width.
        num_layers: Layers.
        ffn: Columns of the feed-forward network.
        activation: ``"swiglu"`` (three matrices) or ``"gelu"`` (two, tanh approximation).
        qk_norm: RMS of queries and keys over one ``"head"``, or over all heads (``"inner"``),
            which costs tensor parallelism one more reduction in every attention.
        bias: Whether the linear layers of attention and feed-forward have one.
        text_channels, num_text_tokens: Text cross-attention; 0: none.
        eps: Of every norm.
        time_channels: Sines and cosines of the time embedding.
        rope_dims: Channels of a head that turn with t, y, x; all even; their sum is head_dim.
        rope_theta: Base of each axis.
        num_sink: Slots that stay for ever: the photo's patches, then learned registers.
        window: Chunks that a query sees, its own included.
        spare: Chunks kept behind the window, so that a rewind finds its past.
        reset_interval: Chunks between two resets of positions.
        first_position: Temporal position of the first chunk; the sink is at 0.
        num_speech_tokens, num_control_tokens: Conditioning tokens of a chunk.
        num_controls: Numbers in a control token: see `conditioning.controls`.
        speech: How sound becomes numbers.
        photo_channels: Further feature maps of the photo, one vector per patch, beside its
            latent; they join both the sink's and every chunk's patches. 0: none.
        prediction: What the DiT predicts: ``"velocity"`` (noise - x0) or ``"x0"``.
        sigmas: Noise level of each pass, falling; 1 is pure noise.
        renoise: Between passes: ``"fresh"`` noise, or the ``"carried"`` noise that the last
            prediction implies.
        decoder: ``"video"``: a Wan2.2-class decoder; ``"flow"``: a small one that moves the photo.
        codec: Shape of the video codec; the encoder of the photo in any case.
    """

    name: str = "avatar-57b"
    width: int = 704
    height: int = 1088
    frames_per_chunk: int = 4
    latent_channels: int = 48
    spatial_stride: int = 16
    patch: int = 2
    hidden: int = 8_192
    num_heads: int = 48
    head_dim: int = 128
    num_layers: int = 60
    ffn: int = 30_720
    activation: Literal["swiglu", "gelu"] = "swiglu"
    qk_norm: Literal["head", "inner"] = "head"
    bias: bool = False
    text_channels: int = 0
    num_text_tokens: int = 0
    eps: float = 1e-6
    time_channels: int = 256
    rope_dims: tuple[int, int, int] = (44, 42, 42)
    rope_theta: tuple[float, float, float] = (10_000.0, 10_000.0, 10_000.0)
    num_sink: int = 1_246
    window: int = 6
    spare: int = 2
    reset_interval: int = 42
    first_position: int = 1
    num_speech_tokens: int = 8
    num_control_tokens: int = 1
    num_controls: int = 16
    speech: SpeechConfig = field(default_factory=lambda: SpeechConfig(hidden=2048, features=512))
    photo_channels: int = 0
    prediction: Literal["velocity", "x0"] = "velocity"
    sigmas: tuple[float, ...] = (1.0, 0.9375, 0.8333, 0.625)
    renoise: Literal["fresh", "carried"] = "fresh"
    decoder: Literal["video", "flow"] = "video"
    codec: WanCodecConfig = field(default_factory=WanCodecConfig)

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other.

        Raises:
            ValueError: With the numbers.
        """
        for name in (
            "width", "height", "frames_per_chunk", "latent_channels", "spatial_stride", "patch",
            "hidden", "num_heads", "head_dim", "num_layers", "ffn",
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, it must be a whole number from 1 on")
        cell = self.spatial_stride * self.patch
        if self.width % cell or self.height % cell:
            raise ValueError(
                f"{self.width}x{self.height} is not a whole number of {cell}-pixel tokens"
            )
        if sum(self.rope_dims) != self.head_dim or any(dim % 2 for dim in self.rope_dims):
            raise ValueError(
                f"rope_dims {self.rope_dims} must be even and add up to head_dim {self.head_dim}"
            )
        if self.num_sink < self.num_patches:
            raise ValueError(
                f"num_sink {self.num_sink} is less than the photo's {self.num_patches} patches"
            )
        if self.window < 1 or self.spare < 0 or self.reset_interval < 1:
            raise ValueError(
                f"window {self.window}, spare {self.spare}, reset_interval {self.reset_interval}: "
                "window and interval must be at least 1, spare at least 0"
            )
        falling = all(a > b for a, b in zip(self.sigmas, self.sigmas[1:], strict=False))
        if not self.sigmas or not falling or not all(0 < sigma <= 1 for sigma in self.sigmas):
            raise ValueError(f"sigmas {self.sigmas} must fall, within (0, 1]")
        codec = (
            self.codec.latent_channels,
            self.codec.spatial_stride,
            self.codec.frames_per_latent,
        )
        latent = (self.latent_channels, self.spatial_stride, self.frames_per_chunk)
        if self.decoder == "video" and codec != latent:
            raise ValueError(
                f"the codec's (channels, stride, frames) {codec} are not the model's {latent}"
            )
        if bool(self.text_channels) != bool(self.num_text_tokens):
            raise ValueError("text_channels and num_text_tokens go together: both, or neither")

    # ---- geometry

    @property
    def latent_size(self) -> tuple[int, int]:
        """Rows and columns of a latent frame."""
        return self.height // self.spatial_stride, self.width // self.spatial_stride

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.latent_size
        return rows // self.patch, columns // self.patch

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def patch_channels(self) -> int:
        """Numbers in one patch: latent channels x patch x patch."""
        return self.latent_channels * self.patch * self.patch

    @property
    def num_conditioning(self) -> int:
        return self.num_speech_tokens + self.num_control_tokens

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one chunk, and the slots that it takes in the cache."""
        return self.num_patches + self.num_conditioning

    @property
    def num_registers(self) -> int:
        """Learned vectors in the sink, behind the photo."""
        return self.num_sink - self.num_patches

    @property
    def chunk_samples(self) -> int:
        return self.frames_per_chunk * SAMPLES_PER_FRAME

    @property
    def chunk_s(self) -> float:
        return self.chunk_samples / SAMPLE_RATE

    @property
    def lookahead_samples(self) -> int:
        """Speech wanted beyond the chunk's end: to the end of the last token's last frame."""
        if not self.num_speech_tokens:
            return 0
        half_token = self.chunk_samples // self.num_speech_tokens // 2
        return self.speech.num_future * self.speech.hop + MEL_WINDOW // 2 - half_token

    # ---- the ring

    @property
    def attended(self) -> int:
        """Slots that one query sees once the window is full."""
        return self.num_sink + self.window * self.chunk_tokens

    @property
    def stored(self) -> int:
        """Slots of the cache."""
        return self.num_sink + (self.window + self.spare) * self.chunk_tokens

    @property
    def max_position(self) -> int:
        """Highest temporal position; the chunk that would pass it begins with a reset.

        It follows from one reset every `reset_interval` chunks, the first included.
        """
        return self.first_position + self.reset_interval - 1

    def kv_bytes(self, precision: Precision, num_heads: int | None = None) -> int:
        """Bytes of one stream's keys and values.

        Args:
            precision: Of keys and values; for FP8 see also `kv_scale_bytes`.
            num_heads: Of one rank; None: all.
        """
        heads = self.num_heads if num_heads is None else num_heads
        per_head = self.head_dim * BYTES_PER_VALUE[precision]
        return 2 * self.num_layers * self.stored * heads * per_head

    def kv_scale_bytes(self, num_heads: int | None = None) -> int:
        """Bytes of the FP32 scales that FP8 brings: one per slot and head, for each of K and V."""
        heads = self.num_heads if num_heads is None else num_heads
        return 2 * self.num_layers * self.stored * heads * 4

    # ---- parameters and work

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Matrix entries that every token of a chunk passes through, per layer."""
        attention = 4 * self.hidden * self.inner
        cross = 2 * self.hidden * self.inner if self.text_channels else 0
        feed_forward = (3 if self.activation == "swiglu" else 2) * self.hidden * self.ffn
        return attention + cross + feed_forward

    @property
    def token_parameters(self) -> int:
        """Matrix entries of all layers on the tokens' path: what a model's size is named after."""
        return self.num_layers * self.layer_matrices

    @property
    def text_parameters(self) -> int:
        """Matrix entries that only the text passes through, once per stream."""
        return self.num_layers * 2 * self.hidden * self.inner if self.text_channels else 0

    @property
    def linear_flops(self) -> int:
        """FLOPs of the layers' matrices for one chunk, all passes."""
        return 2 * self.token_parameters * self.chunk_tokens * len(self.sigmas)

    @property
    def attention_flops(self) -> int:
        """FLOPs of attention for one chunk, all passes, with a full window."""
        keys = self.attended + self.num_text_tokens
        return 4 * self.chunk_tokens * keys * self.inner * self.num_layers * len(self.sigmas)

    @property
    def chunk_flops(self) -> int:
        return self.linear_flops + self.attention_flops

    @property
    def flops_per_s(self) -> float:
        """Sustained FLOP/s of one live session."""
        return self.chunk_flops * FPS / self.frames_per_chunk

    # ---- as a document

    def to_dict(self) -> dict[str, Any]:
        """Give what `from_dict` takes: plain values, fit for JSON."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("speech", "codec"):
            value = plain[name]
            plain[name] = {f.name: getattr(value, f.name) for f in fields(value)}
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> AvatarDiTConfig:
        """Build a configuration from what `to_dict` gave, after any trip through JSON.

        Raises:
            ValueError: A name is unknown, or numbers contradict each other.
        """
        values = _with_tuples(cls, plain)
        if "speech" in values:
            values["speech"] = SpeechConfig(**_with_tuples(SpeechConfig, values["speech"]))
        if "codec" in values:
            values["codec"] = WanCodecConfig(**_with_tuples(WanCodecConfig, values["codec"]))
        return cls(**values)


def _with_tuples(cls: type[Any], plain: dict[str, Any]) -> dict[str, Any]:
    known = {f.name for f in fields(cls)}
    unknown = sorted(set(plain) - known)
    if unknown:
        raise ValueError(
            f"{cls.__name__} has no {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )
    return {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}


_AVATAR_57B = AvatarDiTConfig()
_AVATAR_5B = replace(
    _AVATAR_57B, name="avatar-5b", hidden=3_072, num_heads=24, num_layers=30, ffn=14_336
)
_WAN_5B = replace(
    _AVATAR_5B,
    name="wan2.2-ti2v-5b",
    activation="gelu",
    qk_norm="inner",
    bias=True,
    text_channels=4_096,
    num_text_tokens=512,
    num_sink=748,
    num_speech_tokens=0,
    num_control_tokens=0,
)
_AVATAR_SMALL = AvatarDiTConfig(
    name="avatar-small",
    latent_channels=12,
    spatial_stride=32,
    patch=1,
    hidden=384,
    num_heads=6,
    head_dim=64,
    num_layers=8,
    ffn=1_024,
    rope_dims=(16, 24, 24),
    rope_theta=(200.0, 100.0, 100.0),
    num_sink=757,
    window=7,
    speech=SpeechConfig(),
    photo_channels=392,
    prediction="x0",
    sigmas=(1.0, 0.7, 0.35, 0.12),
    renoise="carried",
    decoder="flow",
)
_TINY = AvatarDiTConfig(
    name="tiny",
    width=128,
    height=192,
    latent_channels=8,
    hidden=64,
    num_heads=4,
    head_dim=16,
    num_layers=2,
    ffn=192,
    rope_dims=(8, 4, 4),
    num_sink=32,
    speech=SpeechConfig(hidden=48, features=16),
    codec=WanCodecConfig(latent_channels=8, encoder_width=4, decoder_width=4),
)

CONFIGS: MappingProxyType[str, AvatarDiTConfig] = MappingProxyType(
    {c.name: c for c in (_AVATAR_57B, _AVATAR_5B, _WAN_5B, _AVATAR_SMALL, _TINY)}
)
"""Every size that has a name."""


def named_config(name: str) -> AvatarDiTConfig:
    """Find a size by its name.

    Raises:
        ValueError: No size has it.
    """
    try:
        return CONFIGS[name]
    except KeyError:
        known = ", ".join(CONFIGS)
        raise ValueError(f"no model is called {name!r}; there are {known}") from None
