"""Importing diffusers' Wan2.2-TI2V-5B layout: random weights at reduced width, both sides FP32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, named_config  # noqa: E402
from talking_avatar.engine.diffusion.decoder.base import PhotoView  # noqa: E402
from talking_avatar.engine.diffusion.layout import tensor_specs  # noqa: E402
from talking_avatar.engine.diffusion.model.dit import DiT  # noqa: E402
from talking_avatar.engine.diffusion.ranks.comm import LocalComm  # noqa: E402
from talking_avatar.engine.diffusion.weights.checkpoint import (  # noqa: E402
    open_checkpoint,
    wan_codec_tensors,
)
from talking_avatar.engine.diffusion.weights.codec import (  # noqa: E402
    load_photo_encoder,
    load_video_decoder,
)
from talking_avatar.engine.diffusion.weights.rank_part import fill_rank  # noqa: E402
from talking_avatar.engine.diffusion.weights.save import save_checkpoint  # noqa: E402
from talking_avatar.engine.diffusion.weights.wan_import import (  # noqa: E402
    open_wan,
    read_wan_config,
)
from talking_avatar.engine.diffusion.weights.wan_keys import dit_name, vae_name  # noqa: E402
from talking_avatar.errors import CheckpointError  # noqa: E402

TOLERANCE = 1e-5
"""Relative, FP32: the same sums in another order."""
BASE = replace(named_config("wan2.2-ti2v-5b"), width=64, height=96, num_sink=6)
GRID = (3, 2)
CHANNELS, HEADS, HEAD_DIM, FFN, LAYERS, TEXT = 6, 3, 16, 56, 2, 20
MEAN, STD = [0.1, -0.2, 0.3, 0.0, 0.5, -0.6], [1.5, 0.5, 2.0, 1.0, 0.25, 1.25]


@pytest.fixture(scope="module")
def transformer() -> Any:
    torch.manual_seed(11)
    model = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_DIM,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        text_dim=TEXT,
        freq_dim=32,
        ffn_dim=FFN,
        num_layers=LAYERS,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
    ).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.fixture(scope="module")
def vae() -> Any:
    torch.manual_seed(12)
    return diffusers.AutoencoderKLWan(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_spatial=16,
        latents_mean=MEAN,
        latents_std=STD,
    ).eval()


@pytest.fixture(scope="module")
def theirs(transformer: Any, vae: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save as diffusers does, the transformer in several shards."""
    folder = tmp_path_factory.mktemp("wan")
    transformer.save_pretrained(folder / "transformer", max_shard_size="100KB")
    vae.save_pretrained(folder / "vae")
    (folder / "model_index.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def imported(theirs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported") / "checkpoint"
    with open_wan(theirs, base=BASE) as weights:
        save_checkpoint(weights, folder, precision="fp32")
    return folder


@pytest.fixture(scope="module")
def model(imported: Path) -> DiT:
    with open_checkpoint(imported) as weights:
        model = DiT(weights.config, LocalComm())
        fill_rank(model.state_dict(), weights)
    return model


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


def test_the_configuration_is_what_the_folder_says(theirs: Path, imported: Path) -> None:
    with open_wan(theirs, base=BASE) as weights, open_checkpoint(imported) as saved:
        config = weights.config
        assert saved.config == config
    assert (config.hidden, config.num_heads, config.head_dim) == (48, HEADS, HEAD_DIM)
    assert (config.ffn, config.num_layers, config.text_channels) == (FFN, LAYERS, TEXT)
    assert (config.latent_channels, config.patch, config.time_channels) == (CHANNELS, 2, 32)
    assert config.rope_dims == (8, 4, 4)
    assert (config.activation, config.qk_norm, config.bias) == ("gelu", "inner", True)
    assert (config.width, config.grid, config.sigmas) == (64, GRID, BASE.sigmas)
    assert config.codec.latent_mean == tuple(MEAN)
    assert config.codec.latent_std == tuple(STD)


def test_the_published_rope_split_is_the_named_one() -> None:
    side = 2 * (128 // 6)
    assert named_config("wan2.2-ti2v-5b").rope_dims == (128 - 2 * side, side, side)


def test_names_map_one_to_one(transformer: Any, vae: Any, imported: Path) -> None:
    with open_checkpoint(imported) as weights:
        dit = [dit_name(name) for name in transformer.state_dict()]
        codec = [vae_name(name) for name in vae.state_dict()]
        assert sorted(dit) == sorted(spec.name for spec in tensor_specs(weights.config))
        assert sorted(codec) == sorted(weights.codec.tensors)
    assert len(set(dit)) == len(dit)


def test_every_tensor_of_the_published_size_has_its_place(tmp_path: Path) -> None:
    """Without weights: 4,999,787,712 parameters of the DiT, 704,688,668 of the codec."""
    config = named_config("wan2.2-ti2v-5b")
    with torch.device("meta"):
        transformer = diffusers.WanTransformer3DModel(
            num_attention_heads=24, in_channels=48, out_channels=48, ffn_dim=14_336, num_layers=30
        )
        vae = diffusers.AutoencoderKLWan(
            base_dim=160, decoder_base_dim=256, z_dim=48, is_residual=True, in_channels=12,
            out_channels=12, patch_size=2, scale_factor_spatial=16,
            latents_mean=[0.0] * 48, latents_std=[1.0] * 48,
        )  # fmt: skip
    transformer.save_config(tmp_path / "transformer")
    vae.save_config(tmp_path / "vae")
    codec = replace(config.codec, latent_mean=(0.0,) * 48, latent_std=(1.0,) * 48)
    assert read_wan_config(tmp_path) == replace(config, codec=codec)

    specs = {spec.name: spec.numel for spec in tensor_specs(config)}
    assert specs == {dit_name(n): p.numel() for n, p in transformer.named_parameters()}
    codec_specs = {name: prod(e.shape) for name, e in wan_codec_tensors(codec).items()}
    assert codec_specs == {vae_name(n): p.numel() for n, p in vae.named_parameters()}
    assert (sum(specs.values()), sum(codec_specs.values())) == (4_999_787_712, 704_688_668)


def test_patches_keep_their_order_in_and_out(transformer: Any, model: DiT) -> None:
    """In: a convolution's weight. Out: rows in another order than ours."""
    weight = transformer.patch_embedding.weight
    assert torch.equal(model.patch_embedding.weight, weight.flatten(1))
    rows = transformer.proj_out.weight.view(2, 2, CHANNELS, -1)
    ours = model.output.weight.view(CHANNELS, 2, 2, -1)
    for y, x, channel in ((0, 0, 0), (0, 1, 3), (1, 0, 5), (1, 1, 2)):
        assert torch.equal(ours[channel, y, x], rows[y, x, channel])
    bias = transformer.proj_out.bias.view(2, 2, CHANNELS)
    assert torch.equal(model.output.bias.view(CHANNELS, 2, 2), bias.permute(2, 0, 1))


@torch.no_grad()
def test_one_block_equals_theirs(transformer: Any, model: DiT) -> None:
    torch.manual_seed(13)
    tokens = GRID[0] * GRID[1]
    x = torch.randn(1, tokens, 48)
    text = torch.randn(1, 5, 48)
    modulation = torch.randn(1, 6, 48)
    angles = transformer.rope(torch.zeros(1, CHANNELS, 1, 2 * GRID[0], 2 * GRID[1]))

    def attend(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
        q, k, v = (part.transpose(0, 1) for part in (q_THD, k_THD, v_THD))
        return F.scaled_dot_product_attention(q, k, v).transpose(0, 1)

    for block, layer in zip(transformer.blocks, model.layers, strict=True):
        expected = block(x, text, modulation, angles)[0]
        seen = layer.cross.read(text[0])
        got = layer(x[0], modulation[0], model.rope.chunk(0), attend, seen)
        assert relative_error(got, expected) <= TOLERANCE


@torch.no_grad()
def test_the_codec_equals_theirs(vae: Any, imported: Path) -> None:
    with open_checkpoint(imported) as weights:
        encoder = load_photo_encoder(weights, dtype=torch.float32)
        decoder = load_video_decoder(weights, dtype=torch.float32)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    image = torch.randint(0, 256, (96, 64, 3), generator=torch.Generator().manual_seed(1))
    image = image.to(torch.uint8)

    latent = encoder.encode_photo(image)
    video = image.permute(2, 0, 1)[None, :, None] / 127.5 - 1
    raw = vae.encode(video).latent_dist.mode()[0, :, 0]
    assert relative_error(latent, (raw - mean) / std) <= TOLERANCE

    following = torch.randn(2, *latent.shape, generator=torch.Generator().manual_seed(2))
    chain = torch.stack([latent, *following], 1) * std[:, None] + mean[:, None]
    expected = vae.decode(chain[None]).sample[0].permute(1, 2, 3, 0)
    state = decoder.start(PhotoView(image, latent))
    for index, z in enumerate(following):
        frames, state = decoder.decode(z, state)
        wanted = (expected[1 + 4 * index : 5 + 4 * index] + 1) * 127.5
        # A value within the FP32 error of a half may round either way.
        assert float((frames.float() - wanted).abs().max()) < 0.501


def test_half_precision_folders_import_too(theirs: Path, tmp_path: Path, transformer: Any) -> None:
    folder = Path(shutil.copytree(theirs, tmp_path / "half"))
    for path in (folder / "transformer").glob("*.safetensors"):
        save_file({k: v.bfloat16() for k, v in load_file(path).items()}, path)
    with open_wan(folder, base=BASE) as weights:
        save_checkpoint(weights, tmp_path / "fp8", precision="fp8")
    with open_checkpoint(tmp_path / "fp8") as weights:
        assert weights.dit.tensors["layers.0.table"].dtype == torch.bfloat16
        table = transformer.blocks[0].scale_shift_table[0].bfloat16()
        assert torch.equal(weights.dit.read("layers.0.table"), table)


# ---- refusals


@pytest.fixture
def broken(theirs: Path, tmp_path: Path) -> Path:
    """Make a copy to break."""
    return Path(shutil.copytree(theirs, tmp_path / "broken"))


def refusal(folder: Path, base: AvatarDiTConfig = BASE) -> str:
    with pytest.raises(CheckpointError) as caught, open_wan(folder, base=base):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("room", "change", "message"),
    [
        ("transformer", lambda d: d.update(_class_name="HeliosModel"), "describes 'HeliosModel'"),
        ("transformer", lambda d: d.update(image_dim=1280), "image_dim is 1280; only None"),
        ("transformer", lambda d: d.update(qk_norm="rms_norm"), "qk_norm is 'rms_norm'"),
        ("transformer", lambda d: d.update(out_channels=3), "out_channels is 3; only 6"),
        ("transformer", lambda d: d.update(patch_size=[2, 2, 2]), "patch_size is [2, 2, 2]"),
        ("transformer", lambda d: d.pop("ffn_dim"), "KeyError('ffn_dim')"),
        ("transformer", lambda d: d.update(in_channels=16, out_channels=16), "not the model's"),
        ("vae", lambda d: d.update(is_residual=False), "is_residual is False; only True"),
        ("vae", lambda d: d.update(attn_scales=[1.0]), "attn_scales is [1.0]; only []"),
        ("vae", lambda d: d.update(scale_factor_spatial=8), "scale_factor_spatial is 8; only 16"),
        ("vae", lambda d: d.update(latents_std=[1.0]), "latent_std has 1 values for 6"),
    ],
)
def test_another_model_is_refused(
    broken: Path, room: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    path = broken / room / "config.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    text = refusal(broken)
    assert message in text
    assert "config.json" in text


def test_a_folder_without_a_vae_is_refused(broken: Path) -> None:
    shutil.rmtree(broken / "vae")
    assert "no configuration of AutoencoderKLWan" in refusal(broken)


def test_a_layer_too_few_is_refused(broken: Path) -> None:
    path = broken / "transformer" / "config.json"
    path.write_text(path.read_text().replace('"num_layers": 2', '"num_layers": 1'))
    text = refusal(broken)
    assert "a tensor is not part of this model: layers.1.attention.k.bias [48] in" in text
    assert "(blocks.1.attn1.to_k.bias)" in text
    path.write_text(path.read_text().replace('"num_layers": 1', '"num_layers": 3'))
    assert "a tensor is missing: layers.2.attention.k.bias (and 26 more)" in refusal(broken)


def test_another_width_is_refused(broken: Path) -> None:
    path = broken / "transformer" / "config.json"
    path.write_text(path.read_text().replace('"ffn_dim": 56', '"ffn_dim": 64'))
    text = refusal(broken)
    assert "layers.0.feed_forward.down.weight: [48, 56] in" in text
    assert "[48, 64] in the model" in text


def test_pickles_are_refused(broken: Path) -> None:
    for path in (broken / "vae").glob("*.safetensors"):
        path.rename(path.with_suffix(".bin"))
    assert "a pickle can run code when it is opened" in refusal(broken)
