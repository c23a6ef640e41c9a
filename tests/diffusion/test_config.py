"""Configurations: the published numbers, by arithmetic; and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from talking_avatar.engine.diffusion.config import (
    CONFIGS,
    AvatarDiTConfig,
    SpeechConfig,
    named_config,
)
from talking_avatar.engine.diffusion.layout import num_parameters, padded_ffn, padded_heads


def test_the_57b_model_is_the_published_one() -> None:
    config = named_config("avatar-57b")
    assert config.grid == (34, 22)
    assert config.num_patches == 704 // 32 * (1088 // 32) == 748
    assert config.chunk_tokens == 748 + 9 == 757
    assert config.attended == 1_246 + 6 * 757 == 5_788
    assert config.stored == 1_246 + 8 * 757 == 7_302
    assert config.num_registers == 498
    assert config.layer_matrices == 4 * 8_192 * 6_144 + 3 * 8_192 * 30_720 == 956_301_312
    assert config.token_parameters == 57_378_078_720
    assert config.linear_flops == 2 * 57_378_078_720 * 757 * 4
    assert config.attention_flops == 4 * 757 * 5_788 * 6_144 * 60 * 4
    assert round(config.linear_flops / 1e12, 1) == 347.5
    assert round(config.attention_flops / 1e12, 1) == 25.8
    assert round(config.chunk_flops / 1e12, 1) == 373.3
    assert round(config.flops_per_s / 1e15, 3) == 2.240
    assert round(config.kv_bytes("fp8") / 1e9, 2) == 5.38
    assert config.max_position == 42
    assert len(config.sigmas) * config.num_layers == 240


@pytest.mark.parametrize(("window", "num_sink"), [(6, 1_246), (7, 489), (5, 2_003)])
def test_splits_of_the_ring(window: int, num_sink: int) -> None:
    config = named_config("avatar-57b")
    assert num_sink + window * config.chunk_tokens == 5_788
    if num_sink >= config.num_patches:
        assert replace(config, window=window, num_sink=num_sink).attended == 5_788
    else:
        with pytest.raises(ValueError, match="less than the photo's 748 patches"):
            replace(config, window=window, num_sink=num_sink)


@pytest.mark.parametrize("tp", [1, 2, 3, 4, 8])
def test_every_shard_of_the_57b_model_is_a_multiple_of_128(tp: int) -> None:
    config = named_config("avatar-57b")
    assert padded_heads(config, tp) == config.num_heads
    assert padded_ffn(config, tp) == config.ffn
    assert config.num_heads // tp * config.head_dim % 128 == 0
    assert config.ffn // tp % 128 == 0


def test_the_small_models() -> None:
    small = named_config("avatar-small")
    assert (small.num_patches, small.chunk_tokens, small.attended) == (748, 757, 6_056)
    assert 15e6 < num_parameters(small) < 17e6
    five = named_config("avatar-5b")
    wan = named_config("wan2.2-ti2v-5b")
    assert (five.hidden, five.num_layers, five.num_heads) == (3_072, 30, 24)
    assert (five.hidden, five.num_layers, five.ffn) == (wan.hidden, wan.num_layers, wan.ffn)
    assert five.text_channels == 0
    assert num_parameters(wan) == 4_999_787_712


@pytest.mark.parametrize("name", list(CONFIGS))
def test_configurations_survive_json(name: str) -> None:
    config = named_config(name)
    assert AvatarDiTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 700}, "700x1088 is not a whole number of 32-pixel tokens"),
        ({"rope_dims": (44, 42, 40)}, "add up to head_dim 128"),
        ({"rope_dims": (43, 43, 42)}, "must be even"),
        ({"sigmas": (1.0, 1.0)}, "must fall"),
        ({"sigmas": ()}, "must fall"),
        ({"sigmas": (float("nan"),)}, "must fall"),
        ({"window": 0}, "at least 1"),
        ({"patch": 0}, "patch is 0, it must be a whole number from 1 on"),
        ({"num_layers": -1}, "num_layers is -1"),
        ({"text_channels": 8}, "both, or neither"),
        ({"latent_channels": 16}, "are not the model's"),
    ],
)
def test_contradictions_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(named_config("avatar-57b"), **change)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no model is called 'avatar-58b'; there are avatar-57b"):
        named_config("avatar-58b")
    with pytest.raises(ValueError, match="AvatarDiTConfig has no depth"):
        AvatarDiTConfig.from_dict({"depth": 3})
    with pytest.raises(FrozenInstanceError):
        named_config("tiny").hidden = 3  # type: ignore[misc]


def test_lookahead_reaches_the_last_frame() -> None:
    config = named_config("tiny")
    last_middle = 4_000 - 250 + config.speech.num_future * config.speech.hop
    assert config.chunk_samples + config.lookahead_samples == last_middle + 300
    assert replace(config, speech=SpeechConfig(num_future=0)).lookahead_samples == 50


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from talking_avatar.engine.diffusion.config import named_config\n"
        "from talking_avatar.engine.diffusion.plan import describe\n"
        "print(describe(named_config('avatar-57b'), 4).weight_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert 15.3e9 < int(done.stdout) < 15.4e9, "14.34 GB of matrices, the rest whole in BF16"
