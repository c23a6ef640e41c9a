"""The video autoencoder by itself: streaming, state, bytes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402

from talking_avatar.engine.diffusion.decoder.base import PhotoView  # noqa: E402
from talking_avatar.engine.diffusion.decoder.codec import (  # noqa: E402
    WanPhotoEncoder,
    WanVideoDecoder,
    channels_last,
)
from talking_avatar.engine.diffusion.decoder.config import WanCodecConfig  # noqa: E402
from talking_avatar.engine.diffusion.decoder.history import CodecState  # noqa: E402
from talking_avatar.engine.diffusion.decoder.networks import (  # noqa: E402
    DecoderNetwork,
    EncoderNetwork,
)
from talking_avatar.engine.diffusion.decoder.pixels import to_bytes, to_patches  # noqa: E402
from talking_avatar.engine.diffusion.decoder.resample import gather, spread  # noqa: E402

CONFIG = WanCodecConfig(latent_channels=4, encoder_width=8, decoder_width=8)
SAME_SUMS_OTHER_ORDER = 1e-5


@pytest.fixture(scope="module")
def decoder() -> DecoderNetwork:
    torch.manual_seed(1)
    return DecoderNetwork(CONFIG).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def encoder() -> EncoderNetwork:
    torch.manual_seed(2)
    return EncoderNetwork(CONFIG).eval().requires_grad_(False)


def in_parts(
    network: DecoderNetwork | EncoderNetwork, frames: Tensor, parts: list[int]
) -> tuple[Tensor, CodecState]:
    """Run the opening frame, then ``parts`` of what follows."""
    out, state = network(frames[:, :, :1], None)
    outs = [out]
    for part in frames[:, :, 1:].split(parts, dim=2):
        out, state = network(part, state)
        outs.append(out)
    return torch.cat(outs, dim=2), state


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


partitions = st.sampled_from([[1] * 5, [2, 3], [3, 2], [4, 1], [1, 2, 2], [1, 1, 3]])


@settings(max_examples=6, deadline=None)
@given(partitions)
def test_decoding_in_any_parts_equals_one_shot(decoder: DecoderNetwork, parts: list[int]) -> None:
    latents = torch.randn(1, 4, 6, 3, 2, generator=torch.Generator().manual_seed(5))
    whole, last = in_parts(decoder, latents, [5])
    got, state = in_parts(decoder, latents, parts)
    assert whole.shape == (1, 12, 21, 24, 16)
    assert relative_error(got, whole) <= SAME_SUMS_OTHER_ORDER
    for mine, theirs in zip(state.past, last.past, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@settings(max_examples=4, deadline=None)
@given(st.sampled_from([[4, 4, 4], [8, 4], [4, 8]]))
def test_encoding_in_any_parts_equals_one_shot(encoder: EncoderNetwork, parts: list[int]) -> None:
    video = torch.rand(1, 12, 13, 24, 16, generator=torch.Generator().manual_seed(6)) * 2 - 1
    whole, _ = in_parts(encoder, video, [12])
    got, _ = in_parts(encoder, video, parts)
    assert whole.shape == (1, 4, 4, 3, 2)
    assert relative_error(got, whole) <= SAME_SUMS_OTHER_ORDER


def test_causal_in_time(decoder: DecoderNetwork) -> None:
    latents = torch.randn(1, 4, 4, 2, 2, generator=torch.Generator().manual_seed(7))
    changed = latents.clone()
    changed[:, :, 3] += 1
    before, _ = in_parts(decoder, latents, [1, 1, 1])
    after, _ = in_parts(decoder, changed, [1, 1, 1])
    assert torch.equal(before[:, :, :9], after[:, :, :9])
    assert not torch.equal(before[:, :, 9:], after[:, :, 9:])


def test_channels_last_gives_the_same(decoder: DecoderNetwork) -> None:
    latents = torch.randn(1, 4, 3, 3, 2, generator=torch.Generator().manual_seed(8))
    expected, _ = in_parts(decoder, latents, [1, 1])
    other = DecoderNetwork(CONFIG).eval().requires_grad_(False)
    other.load_state_dict(decoder.state_dict())
    channels_last(other)
    got, _ = in_parts(other, latents.to(memory_format=torch.channels_last_3d), [1, 1])
    assert relative_error(got, expected) <= SAME_SUMS_OTHER_ORDER


@pytest.fixture
def video(decoder: DecoderNetwork) -> WanVideoDecoder:
    return WanVideoDecoder(CONFIG, decoder)


@pytest.fixture
def photo() -> PhotoView:
    generator = torch.Generator().manual_seed(9)
    return PhotoView(
        image=torch.zeros(48, 32, 3, dtype=torch.uint8),
        latent=torch.randn(4, 3, 2, generator=generator),
    )


def some_latents(count: int, seed: int = 10) -> Tensor:
    return torch.randn(count, 4, 3, 2, generator=torch.Generator().manual_seed(seed))


def test_a_chunk_is_four_frames_of_bytes(video: WanVideoDecoder, photo: PhotoView) -> None:
    frames, _ = video.decode(some_latents(1)[0], video.start(photo))
    assert video.frames_per_latent == 4
    assert frames.shape == (4, 48, 32, 3)
    assert frames.dtype == torch.uint8
    assert frames.is_contiguous()
    assert len(frames.unique()) > 8


def test_going_back_is_decoding_from_an_older_state(
    video: WanVideoDecoder, photo: PhotoView
) -> None:
    a, b, c = some_latents(3)
    start = video.start(photo)
    _, after_a = video.decode(a, start)
    kept = [tensor.clone() for tensor in after_a.past]
    expected_b, after_b = video.decode(b, after_a)
    video.decode(c, after_b)
    again, after_again = video.decode(b, after_a)
    assert torch.equal(again, expected_b)
    assert all(map(torch.equal, after_again.past, after_b.past))
    assert all(map(torch.equal, after_a.past, kept))
    other, _ = video.decode(c, after_a)
    assert not torch.equal(other, expected_b)


def test_a_snapshot_shares_no_memory(video: WanVideoDecoder, photo: PhotoView) -> None:
    state = video.start(photo)
    copy = state.snapshot()
    expected, _ = video.decode(some_latents(1)[0], state)
    for tensor in state.past:
        tensor.zero_()
    got, _ = video.decode(some_latents(1)[0], copy)
    assert torch.equal(got, expected)


def test_the_state_does_not_grow_nor_keep_more_than_it_shows(
    video: WanVideoDecoder, photo: PhotoView
) -> None:
    state = video.start(photo)
    nbytes = state.nbytes
    shapes = [tensor.shape for tensor in state.past]
    for latent in some_latents(5):
        _, state = video.decode(latent, state)
        assert [tensor.shape for tensor in state.past] == shapes
        assert sum(tensor.untyped_storage().nbytes() for tensor in state.past) == nbytes
    assert state.nbytes == nbytes == 4 * CONFIG.state_values(3, 2)


def test_a_photo_survives_the_trip_to_its_latent(
    encoder: EncoderNetwork, decoder: DecoderNetwork
) -> None:
    config = WanCodecConfig(
        latent_channels=4,
        encoder_width=8,
        decoder_width=8,
        latent_mean=(1.0, -2.0, 0.5, 0.0),
        latent_std=(2.0, 1.0, 0.5, 4.0),
    )
    image = torch.randint(0, 256, (48, 32, 3), generator=torch.Generator().manual_seed(1))
    latent = WanPhotoEncoder(config, encoder).encode_photo(image.to(torch.uint8))
    patches = to_patches(image.to(torch.uint8)[None], 2, torch.float32)
    raw, _ = encoder(patches, None)
    back = latent * torch.tensor(config.latent_std).view(-1, 1, 1)
    back = back + torch.tensor(config.latent_mean).view(-1, 1, 1)
    torch.testing.assert_close(back, raw[0, :, 0])

    state = WanVideoDecoder(config, decoder).start(PhotoView(image=image, latent=latent))
    _, expected = decoder(raw, None)
    for mine, theirs in zip(state.past, expected.past, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_bytes_survive_the_trip_through_patches() -> None:
    image = torch.randint(0, 256, (3, 8, 6, 3), generator=torch.Generator().manual_seed(1))
    frames = image.to(torch.uint8)
    patches = to_patches(frames, 2, torch.float32)
    assert patches.shape == (1, 12, 3, 4, 3)
    assert float(patches.min()) >= -1
    assert float(patches.max()) <= 1
    # Color slowest, then column, then row.
    assert patches[0, 1 * 4 + 1 * 2 + 0, 2, 3, 1] == frames[2, 6, 3, 1] / 127.5 - 1
    assert torch.equal(to_bytes(patches, 2), frames)


def test_bytes_clip_what_is_outside() -> None:
    values = torch.tensor([-3.0, -1.0, 0.0, 1.0, 7.0, float("nan"), float("inf"), -float("inf")])
    patches = values.view(1, 1, 1, 1, -1).expand(1, 3, 1, 1, -1)
    assert to_bytes(patches, 1)[0, 0, :, 0].tolist() == [0, 0, 128, 255, 255, 0, 255, 0]


def test_shortcuts_undo_each_other() -> None:
    x = torch.randn(1, 6, 2, 3, 4, generator=torch.Generator().manual_seed(2))
    for channels in (3, 6, 12):
        larger = spread(x, channels, 2, 2)
        assert larger.shape == (1, channels, 4, 6, 8)
        torch.testing.assert_close(gather(larger, 6, 2, 2), x)


def test_bf16_stays_near_fp32(decoder: DecoderNetwork) -> None:
    latents = torch.randn(1, 4, 3, 3, 2, generator=torch.Generator().manual_seed(3))
    expected, _ = in_parts(decoder, latents, [1, 1])
    narrow = DecoderNetwork(CONFIG).eval().requires_grad_(False)
    narrow.load_state_dict(decoder.state_dict())
    got, state = in_parts(narrow.to(torch.bfloat16), latents.to(torch.bfloat16), [1, 1])
    assert all(tensor.dtype == torch.bfloat16 for tensor in state.past)
    # 32 convolutions, each rounding to 8 bits (2^-9 relative), errors adding like a random walk.
    assert relative_error(got.float(), expected) <= 32**0.5 * 2**-8


@pytest.mark.parametrize("shape", [(4, 3), (5, 3, 2), (1, 4, 3, 2)])
def test_a_latent_of_the_wrong_shape_is_refused(
    video: WanVideoDecoder, photo: PhotoView, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"a latent frame is \(4, height, width\)"):
        video.decode(torch.zeros(shape), video.start(photo))


def test_a_latent_of_another_size_than_the_video_is_refused(
    video: WanVideoDecoder, photo: PhotoView
) -> None:
    with pytest.raises(ValueError, match=r"frames of \(3, 2\), this one is \(3, 4\)"):
        video.decode(torch.zeros(4, 3, 4), video.start(photo))


def test_a_state_of_another_network_is_refused(
    decoder: DecoderNetwork, video: WanVideoDecoder, photo: PhotoView
) -> None:
    past = video.start(photo).past
    with pytest.raises(ValueError, match=r"more than the \d+ layers"):
        decoder(some_latents(1)[0][None, :, None], CodecState((*past, past[-1])))
    with pytest.raises(ValueError, match="fewer layers"):
        decoder(some_latents(1)[0][None, :, None], CodecState(past[:-1]))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(48, 32, 3), "uint8"),
        (torch.zeros(48, 32, dtype=torch.uint8), "uint8"),
        (torch.zeros(48, 40, 3, dtype=torch.uint8), "40x48 does not divide into cells of 16"),
    ],
)
def test_a_photo_of_the_wrong_kind_is_refused(
    encoder: EncoderNetwork, image: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        WanPhotoEncoder(CONFIG, encoder).encode_photo(image)


def test_the_published_size() -> None:
    config = WanCodecConfig()
    assert (config.spatial_stride, config.frames_per_latent) == (16, 4)
    with torch.device("meta"):
        network = DecoderNetwork(config).to(torch.bfloat16)
        latent = torch.empty(1, 48, 1, 68, 44, dtype=torch.bfloat16)
        _, state = network(latent, None)
        pixels, after = network(latent, state)
    assert pixels.shape == (1, 12, 4, 544, 352)
    assert state.nbytes == after.nbytes == 2_733_491_200
    assert 2 * config.state_values(68, 44) == state.nbytes
    assert sum(p.numel() for p in network.parameters()) == 555_051_580


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"halves_time": (True,)}, "halves_time has 1"),
        ({"latent_mean": (1.0,)}, "latent_mean has 1 values for 48"),
        ({"latent_std": (0.0,) * 48}, "must be positive"),
        ({"multipliers": (1, 2, 3, 4)}, "no encoder stage leads from 320 to 480"),
        ({"multipliers": (1, 3, 3, 3)}, "no encoder stage leads from 160 to 480"),
        ({"multipliers": (1, 2, 2, 4)}, "no encoder stage leads from 320 to 640"),
        ({"multipliers": (1, 1, 8, 8)}, "no decoder stage leads from 2048 to 256"),
    ],
)
def test_impossible_shapes_are_refused(numbers: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WanCodecConfig(**numbers)
