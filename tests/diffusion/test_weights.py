"""Checkpoints: reading, dividing over ranks, rounding to FP8, random weights, refusals."""

from __future__ import annotations

import ctypes
import json
import math
import re
import shutil
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import Tensor  # noqa: E402

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, named_config  # noqa: E402
from talking_avatar.engine.diffusion.decoder.base import PhotoView  # noqa: E402
from talking_avatar.engine.diffusion.fp8 import FP8, dequantize, quantize  # noqa: E402
from talking_avatar.engine.diffusion.layout import tensor_specs  # noqa: E402
from talking_avatar.engine.diffusion.model.dit import DiT  # noqa: E402
from talking_avatar.engine.diffusion.ranks.comm import LocalComm  # noqa: E402
from talking_avatar.engine.diffusion.weights.checkpoint import (  # noqa: E402
    Weights,
    open_checkpoint,
    random_weights,
    read_config,
)
from talking_avatar.engine.diffusion.weights.codec import (  # noqa: E402
    load_photo_encoder,
    load_video_decoder,
)
from talking_avatar.engine.diffusion.weights.random_source import RandomSource  # noqa: E402
from talking_avatar.engine.diffusion.weights.rank_part import fill_rank  # noqa: E402
from talking_avatar.engine.diffusion.weights.save import save_checkpoint  # noqa: E402
from talking_avatar.engine.diffusion.weights.shard_writer import (  # noqa: E402
    Planned,
    ShardWriter,
)
from talking_avatar.engine.diffusion.weights.shards import ShardFolder  # noqa: E402
from talking_avatar.engine.diffusion.weights.source import ALL, TensorInfo  # noqa: E402
from talking_avatar.errors import CheckpointError  # noqa: E402

TINY = named_config("tiny")
UNEVEN = replace(TINY, num_heads=6, ffn=200)
"""6 heads and 200 columns: neither divides by 4; the columns not by 16 either."""
MATRIX = "layers.0.attention.q.weight"


def allocate(
    config: AvatarDiTConfig, num_ranks: int = 1, *, fp8: bool = False, dtype: Any = None
) -> dict[str, Tensor]:
    """Make one rank's tensors, full of a value that no loader writes."""
    made: dict[str, Tensor] = {}
    for spec in tensor_specs(config, num_ranks):
        shape = spec.parameter_shape(num_ranks)
        target = torch.full(shape, 7e7, dtype=dtype or torch.float32)
        if fp8 and spec.is_matrix:
            target = torch.full(shape, 448.0).to(FP8)
            made[f"{spec.parameter}_scale"] = torch.full(shape[:1], 7e7)
        made[spec.parameter] = target
    return made


def filled(
    weights: Weights, num_ranks: int = 1, rank: int = 0, *, block_bytes: int = 4096, **kind: Any
) -> dict[str, Tensor]:
    targets = allocate(weights.config, num_ranks, **kind)
    fill_rank(targets, weights, rank=rank, num_ranks=num_ranks, block_bytes=block_bytes)
    return targets


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def same(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return mine.keys() == theirs.keys() and all(
        torch.equal(bits(mine[name]), bits(theirs[name])) for name in mine
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    save_checkpoint(random_weights(TINY, 1), folder, precision="fp32", shard_bytes=100_000)
    return folder


@pytest.fixture
def broken(saved: Path, tmp_path: Path) -> Path:
    """Make a copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "broken"))


# ---- saving and opening


def test_saved_weights_come_back_bit_for_bit(saved: Path) -> None:
    assert len(list((saved / "dit").glob("*.safetensors"))) > 2
    with open_checkpoint(saved, expected=TINY) as weights:
        assert weights.config == TINY
        assert weights.precision == "fp32"
        assert same(filled(weights), filled(random_weights(TINY, 1)))


def test_the_model_itself_can_be_filled(saved: Path) -> None:
    model = DiT(TINY, LocalComm())
    with open_checkpoint(saved) as weights:
        fill_rank(model.state_dict(), weights)
    name = "layers.1.attention.qkv.weight"
    expected = random_weights(TINY, 1).dit.read("layers.1.attention.v.weight")
    assert torch.equal(model.get_parameter(name)[2 * TINY.inner :], expected)


def test_any_reader_of_safetensors_opens_the_shards(saved: Path) -> None:
    index = json.loads((saved / "dit" / "weights.safetensors.index.json").read_text())
    source = random_weights(TINY, 1).dit
    seen = {}
    for file in set(index["weight_map"].values()):
        seen.update(load_file(saved / "dit" / file))
    assert seen.keys() == source.tensors.keys()
    assert all(torch.equal(seen[name], source.read(name)) for name in seen)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in seen.values())


def test_half_precision_rounds_matrices_alone(tmp_path: Path) -> None:
    save_checkpoint(random_weights(TINY, 1), tmp_path / "half", precision="bf16")
    with open_checkpoint(tmp_path / "half") as weights:
        kinds = {name: info.dtype for name, info in weights.dit.tensors.items()}
        source = random_weights(TINY, 1).dit
        assert torch.equal(weights.dit.read(MATRIX), source.read(MATRIX).bfloat16())
    for spec in tensor_specs(TINY):
        assert kinds[spec.name] == (torch.bfloat16 if spec.is_matrix else torch.float32)


def test_a_folder_is_a_checkpoint_only_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ShardWriter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(random_weights(TINY), tmp_path / "new", precision="fp32")
    assert [path for path in (tmp_path / "new").rglob("*") if path.is_file()] == []


def test_a_model_with_another_kind_of_decoder_has_no_codec_of_this_kind(tmp_path: Path) -> None:
    config = replace(TINY, decoder="flow")
    save_checkpoint(random_weights(config), tmp_path / "flow", precision="fp32")
    with open_checkpoint(tmp_path / "flow") as weights:
        assert dict(weights.codec.tensors) == {}
        assert same(filled(weights), filled(random_weights(config)))


def test_reading_after_closing_says_so(saved: Path) -> None:
    with open_checkpoint(saved) as weights:
        pass
    with pytest.raises(ValueError, match="is closed: read inside its `with` block"):
        filled(weights)


def test_nothing_is_overwritten(saved: Path) -> None:
    with pytest.raises(CheckpointError, match="already holds a checkpoint"):
        save_checkpoint(random_weights(TINY), saved, precision="fp32")


def test_codec_halves_load_by_themselves(saved: Path) -> None:
    with open_checkpoint(saved) as weights:
        encoder = load_photo_encoder(weights, dtype=torch.float32)
        decoder = load_video_decoder(weights, dtype=torch.float32)
    image = torch.zeros(192, 128, 3, dtype=torch.uint8)
    latent = encoder.encode_photo(image)
    assert latent.shape == (8, 12, 8)
    frames, _ = decoder.decode(latent, decoder.start(PhotoView(image, latent)))
    assert frames.shape == (4, 192, 128, 3)
    random = load_video_decoder(random_weights(TINY, 1), dtype=torch.float32)
    expected, _ = random.decode(latent, random.start(PhotoView(image, latent)))
    assert torch.equal(frames, expected)


# ---- ranks


def parts_of(parameters: list[dict[str, Tensor]], spec: Any) -> list[Tensor]:
    num_ranks = len(parameters)
    rows = spec.part_shape(num_ranks)[0]
    return [p[spec.parameter][spec.part * rows : (spec.part + 1) * rows] for p in parameters]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("config", [TINY, UNEVEN, named_config("wan2.2-ti2v-5b")])
def test_the_ranks_together_hold_the_whole_and_zeros(
    config: AvatarDiTConfig, num_ranks: int
) -> None:
    config = replace(
        config, hidden=64, head_dim=16, rope_dims=(8, 4, 4), num_layers=1, ffn=config.ffn % 10_000
    )
    if config.text_channels:
        config = replace(config, num_heads=5, ffn=72, text_channels=24, bias=True)
    weights = random_weights(config, 2)
    ranks = [filled(weights, num_ranks, rank) for rank in range(num_ranks)]
    for spec in tensor_specs(config, num_ranks):
        whole = weights.dit.read(spec.name)
        parts = parts_of(ranks, spec)
        if spec.split is None:
            assert all(torch.equal(part, whole) for part in parts)
            continue
        dim = 0 if spec.split == "rows" else 1
        joined = torch.cat(parts, dim)
        assert joined.shape[dim] == spec.padded
        held, added = joined.split([whole.shape[dim], spec.padded - whole.shape[dim]], dim)
        assert torch.equal(held, whole)
        assert not added.any()


def test_ranks_that_hold_only_zeros_load_from_shards(tmp_path: Path) -> None:
    weights = random_weights(UNEVEN, 2)
    save_checkpoint(weights, tmp_path / "new", precision="fp8")
    down, scale = "layers.0.feed_forward.down.weight", "layers.0.feed_forward.down.weight_scale"
    with open_checkpoint(tmp_path / "new") as shards:
        for rank in range(8):
            mine, theirs = (filled(source, 8, rank, fp8=True) for source in (shards, weights))
            assert same(mine, theirs)
            assert bool(mine[down].float().any()) == (rank < 7)
            assert bool(mine["layers.0.attention.qkv.weight"].float().any()) == (rank < 6)
            assert torch.equal(mine[scale], quantize(weights.dit.read(down))[1])


def test_padding_is_there_to_be_tested() -> None:
    specs = {spec.name: spec for spec in tensor_specs(UNEVEN, 4)}
    assert specs[MATRIX].padded == 8 * 16 > 6 * 16
    assert specs["layers.0.feed_forward.down.weight"].padded == 256 > 200


@pytest.mark.parametrize(("rank", "num_ranks"), [(2, 2), (-1, 2)])
def test_a_rank_that_is_not_is_refused(rank: int, num_ranks: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {num_ranks}"):
        filled(random_weights(TINY), num_ranks, rank)


def test_tensors_of_another_division_are_refused() -> None:
    with pytest.raises(ValueError, match=r"attention.qkv.weight is \[192, 64\], but \[96, 64\]"):
        fill_rank(allocate(TINY, 1), random_weights(TINY), num_ranks=2)
    targets = allocate(TINY)
    del targets["output_table"]
    with pytest.raises(ValueError, match="disagree on 1 names, the first is output_table"):
        fill_rank(targets, random_weights(TINY))


# ---- memory


class Watched:
    """A source that notes what is read, and what of it is alive at the same time."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.alive_bytes = 0
        self.peak_bytes = 0
        self.read_bytes: dict[str, int] = {}

    @property
    def where(self) -> str:
        return str(self._source.where)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return dict(self._source.tensors)

    def read(self, name: str, rows: slice = ALL, columns: slice = ALL, *, device: str) -> Tensor:
        block: Tensor = self._source.read(name, rows, columns, device=device)
        self.alive_bytes += block.nbytes
        self.peak_bytes = max(self.peak_bytes, self.alive_bytes)
        self.read_bytes[name] = self.read_bytes.get(name, 0) + block.nbytes
        weakref.finalize(block, self._forget, block.nbytes)
        return block

    def _forget(self, nbytes: int) -> None:
        self.alive_bytes -= nbytes


@pytest.mark.parametrize("block_bytes", [1, 4096, 2**30])
@pytest.mark.parametrize("fp8", [False, True])
def test_loading_holds_one_block_and_reads_only_the_ranks_part(
    saved: Path, saved_fp8: Path, block_bytes: int, fp8: bool
) -> None:
    with open_checkpoint(saved_fp8 if fp8 else saved) as weights:
        dit = Watched(weights.dit)
        targets = filled(replace(weights, dit=dit), 4, 1, block_bytes=block_bytes, fp8=fp8)
        row = max(4 * spec.numel // spec.shape[0] for spec in tensor_specs(TINY))
        whole = max(info.nbytes for info in weights.dit.tensors.values())
        assert dit.peak_bytes <= min(max(block_bytes, row), whole)
        assert dit.alive_bytes == 0
        assert sum(dit.read_bytes.values()) == sum(tensor.nbytes for tensor in targets.values())
        assert dit.read_bytes[MATRIX] == weights.dit.tensors[MATRIX].nbytes // 4


def test_random_weights_cost_one_block_too() -> None:
    weights = random_weights(TINY, 1)
    dit = Watched(weights.dit)
    targets = filled(replace(weights, dit=dit), 4, 1)
    assert dit.peak_bytes <= 4096
    assert sum(dit.read_bytes.values()) == sum(tensor.nbytes for tensor in targets.values())


def test_ranks_load_at_the_same_time(saved: Path) -> None:
    with open_checkpoint(saved) as weights, ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda rank: filled(weights, 4, rank, block_bytes=256), range(4)))
        alone = [filled(weights, 4, rank) for rank in range(4)]
    assert all(map(same, together, alone))


def test_a_shards_region_is_a_region(saved: Path) -> None:
    with ShardFolder(saved / "dit") as shards:
        whole = shards.read(MATRIX)
        part = shards.read(MATRIX, slice(8, 12), slice(16, 32))
    assert torch.equal(part, whole[8:12, 16:32])


def anonymous_bytes() -> int:
    """Memory in use by this process that no file stands behind."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed is not in use
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="Linux with glibc counts this",
)
def test_memory_in_use_while_loading_is_the_ranks_part(tmp_path: Path) -> None:
    config = replace(TINY, hidden=1024, num_heads=16, head_dim=64, rope_dims=(24, 20, 20), ffn=4096)
    save_checkpoint(random_weights(config), tmp_path / "new", precision="fp32")
    peak = 0

    class Sampled(Watched):
        def read(self, *args: Any, **kwargs: Any) -> Tensor:
            nonlocal peak
            peak = max(peak, anonymous_bytes())
            return super().read(*args, **kwargs)

    with open_checkpoint(tmp_path / "new") as weights:
        before = anonymous_bytes()
        targets = allocate(config, 4)
        part_bytes = sum(tensor.nbytes for tensor in targets.values())
        dit = Sampled(weights.dit)
        fill_rank(targets, replace(weights, dit=dit), rank=2, num_ranks=4, block_bytes=2**20)
        largest = max(info.nbytes for info in weights.dit.tensors.values())
    assert largest > 24e6
    assert part_bytes > 60e6
    assert 0.9 * part_bytes < peak - before < part_bytes + 8e6


# ---- random weights


def test_a_value_depends_on_seed_name_and_place_alone() -> None:
    shapes = {"a.weight": (40, 6, 3), "b.weight": (40, 6, 3)}
    source = RandomSource(shapes, 5)
    whole = source.read("a.weight")
    region = source.read("a.weight", slice(7, 20), slice(2, 4))
    assert torch.equal(region, whole[7:20, 2:4])
    assert torch.equal(RandomSource(shapes, 5).read("a.weight"), whole)
    assert not torch.equal(RandomSource(shapes, 6).read("a.weight"), whole)
    assert not torch.equal(source.read("b.weight"), whole)


def test_values_are_pinned() -> None:
    """A change of the generator changes every benchmark's inputs: it must be on purpose."""
    values = RandomSource({"layers.0.attention.q.weight": (4, 3)}, 0).read(MATRIX)
    assert values[0].tolist() == [0.31222426891326904, -0.5173385143280029, -0.005388736724853516]


def test_random_weights_look_random() -> None:
    values = RandomSource({"w.weight": (1000, 300)}, 3).read("w.weight").double()
    scaled = values * 300**0.5
    assert float(scaled.mean().abs()) < 4 / 300_000**0.5
    assert float(scaled.std()) == pytest.approx(1, abs=0.005)
    for shift in ((1, 0), (0, 1), (1, 1), (7, 3)):
        moved = scaled.roll(shift, (0, 1))
        assert float((scaled * moved).mean().abs()) < 4 / 300_000**0.5
    counts = torch.histc(scaled.float(), bins=64)
    expected = 300_000 / 64
    chi_square = float(((counts - expected).square() / expected).sum())
    assert 30 < chi_square < 110  # 63 degrees of freedom: 4 deviations are 18 and 108


def test_norms_are_near_one_and_biases_near_zero() -> None:
    source = random_weights(replace(TINY, bias=True), 0).dit
    norm = source.read("layers.0.attention.q_norm.weight")
    bias = source.read("layers.0.attention.q.bias")
    assert 0.9 <= float(norm.min()) < float(norm.max()) <= 1.1
    assert 0 < float(bias.abs().max()) <= 0.02


def test_a_tensor_too_large_for_its_counter_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 2"):
        RandomSource({"w": (2**16, 2**16)}, 0)


# ---- FP8


@pytest.fixture(scope="module")
def saved_fp8(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fp8") / "checkpoint"
    with open_checkpoint(saved) as weights:
        save_checkpoint(weights, folder, precision="fp8", shard_bytes=50_000, block_bytes=3000)
    return folder


@pytest.mark.parametrize("num_ranks", [1, 3, 4])
def test_fp8_saved_equals_fp8_on_loading(saved: Path, saved_fp8: Path, num_ranks: int) -> None:
    with open_checkpoint(saved) as first, open_checkpoint(saved_fp8) as second:
        assert read_config(saved_fp8) == (TINY, "fp8")
        for rank in range(num_ranks):
            mine = filled(first, num_ranks, rank, fp8=True)
            theirs = filled(second, num_ranks, rank, fp8=True, block_bytes=700)
            assert same(mine, theirs)


def test_a_rows_scale_is_the_same_for_any_number_of_ranks(saved: Path) -> None:
    name = "layers.0.attention.out.weight"
    with open_checkpoint(saved) as weights:
        values, scale = quantize(weights.dit.read(name))
        for rank in range(4):
            part = filled(weights, 4, rank, fp8=True)
            assert torch.equal(part[f"{name}_scale"], scale)
            columns = slice(rank * 16, rank * 16 + 16)
            assert torch.equal(bits(part[name]), bits(values[:, columns]))
        # Three bits of mantissa: half a step of 1/8 at most, so 1/16 of the value; rows of
        # uniform values lose less on average.
        error = dequantize(values, scale) - weights.dit.read(name)
        assert float(error.norm() / weights.dit.read(name).norm()) < 1 / 32


def test_fp8_is_much_smaller_and_only_where_it_may_be(saved: Path, saved_fp8: Path) -> None:
    with open_checkpoint(saved_fp8) as weights:
        for spec in tensor_specs(TINY):
            assert (weights.dit.tensors[spec.name].dtype == FP8) == spec.is_matrix
        matrices = [spec for spec in tensor_specs(TINY) if spec.is_matrix]
        stored = sum(
            weights.dit.tensors[name].nbytes
            for spec in matrices
            for name in (spec.name, f"{spec.name}_scale")
        )
    rows = sum(spec.shape[0] for spec in matrices)
    assert stored == sum(spec.numel for spec in matrices) + 4 * rows


def test_what_fp8_lost_cannot_be_had_back(saved_fp8: Path, tmp_path: Path) -> None:
    with open_checkpoint(saved_fp8) as weights:
        with pytest.raises(CheckpointError, match=r"stored in FP8, so .* cannot be had"):
            filled(weights)
        with pytest.raises(CheckpointError, match="cannot be saved as bf16"):
            save_checkpoint(weights, tmp_path / "back", precision="bf16")
        save_checkpoint(weights, tmp_path / "again", precision="fp8")
    with open_checkpoint(tmp_path / "again") as again, open_checkpoint(saved_fp8) as weights:
        assert same(filled(again, fp8=True), filled(weights, fp8=True))


# ---- refusals


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def shard_of(folder: Path, name: str) -> Path:
    for path in sorted(folder.rglob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if name in set(file.keys()):
                return path
    raise AssertionError(name)


def edit_shard(folder: Path, name: str, change: Callable[[dict[str, Tensor]], object]) -> Path:
    path = shard_of(folder, name)
    tensors = {key: value.clone() for key, value in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    return path


def edit_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / "dit" / "weights.safetensors.index.json"
    document = json.loads(path.read_text())
    change(document["weight_map"])
    path.write_text(json.dumps(document))


def refusal(folder: Path, **kwargs: Any) -> str:
    with pytest.raises(CheckpointError) as caught, open_checkpoint(folder, **kwargs):
        pass
    return str(caught.value)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    assert "not there, so" in refusal(tmp_path)
    assert "weights import" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), '"format" is not "talking-avatar"'),
        (lambda d: d.update(version=2), "version 2, this release reads 1"),
        (lambda d: d.update(precision="int4"), "\"precision\" is 'int4'"),
        (lambda d: d.pop("model"), '"model" does not describe one'),
        (lambda d: d["model"].update(colour=1), "AvatarDiTConfig has no colour"),
        (lambda d: d["model"].update(hidden="wide"), "hidden is 'wide', it must be a whole number"),
        (lambda d: d["model"].update(eps="small"), "eps is 'small', not of type float"),
        (lambda d: d["model"].update(rope_dims=[8, 4, 2]), "add up to head_dim 16"),
        (lambda d: d["model"].update(prediction="eps"), "'eps', not one of velocity, x0"),
        (lambda d: d["model"]["speech"].update(source="x"), "'x', not one of mel, wav2vec2"),
        (lambda d: d["model"]["codec"].update(latent_mean=[float("nan")] * 8), "be finite"),
    ],
)
def test_a_config_that_says_something_else_is_refused(
    broken: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit_config(broken, change)
    text = refusal(broken)
    assert message in text
    assert "config.json" in text


def test_a_config_that_is_not_json_is_refused(broken: Path) -> None:
    (broken / "config.json").write_text("{")
    assert "config.json: not JSON" in refusal(broken)


def test_another_model_than_wanted_is_refused(saved: Path) -> None:
    wanted = replace(TINY, window=4, num_heads=8)
    text = refusal(saved, expected=wanted)
    assert "num_heads 4 (wanted 8)" in text
    assert "window 6 (wanted 4)" in text


def test_latent_statistics_come_with_the_weights(tmp_path: Path) -> None:
    config = replace(TINY, codec=replace(TINY.codec, latent_mean=(0.5,) * 8))
    save_checkpoint(random_weights(config), tmp_path / "new", precision="fp32")
    with open_checkpoint(tmp_path / "new", expected=TINY) as weights:
        assert weights.config.codec.latent_mean == (0.5,) * 8


def test_a_missing_tensor_is_named(broken: Path) -> None:
    path = edit_shard(broken, MATRIX, lambda tensors: tensors.pop(MATRIX))
    assert f"{path}: has no {MATRIX}, which the index puts there" in refusal(broken)
    edit_index(broken, lambda names: names.pop(MATRIX))
    assert f"{broken / 'dit'}: a tensor is missing: {MATRIX}" in refusal(broken)


def test_an_unexpected_tensor_is_named(broken: Path) -> None:
    path = edit_shard(broken, MATRIX, lambda tensors: tensors.update(extra=torch.zeros(2, 3)))
    assert f"{path}: has extra, which the index does not name" in refusal(broken)
    edit_index(broken, lambda names: names.update(extra=path.name))
    assert f"not part of this model: extra [2, 3] in {path}" in refusal(broken)


def test_another_shape_is_named(broken: Path) -> None:
    path = edit_shard(broken, MATRIX, lambda tensors: tensors.update({MATRIX: torch.zeros(64, 32)}))
    assert f"{MATRIX}: [64, 32] in {path}, [64, 64] in the model" in refusal(broken)


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int8, "I8"), (torch.float64, "F64"), (FP8, "F8_E4M3")]
)
def test_another_type_is_named(broken: Path, dtype: Any, name: str) -> None:
    path = edit_shard(
        broken, MATRIX, lambda tensors: tensors.update({MATRIX: tensors[MATRIX].to(dtype)})
    )
    assert f"{MATRIX}: {name} in {path}, wanted BF16 or F16 or F32" in refusal(broken)


@pytest.mark.parametrize(
    ("stored", "name", "fp8", "value"),
    [
        ("saved", MATRIX, False, math.nan),
        ("saved", MATRIX, False, math.inf),
        ("saved", MATRIX, True, math.nan),
        ("saved", MATRIX, True, math.inf),
        ("saved_fp8", MATRIX, True, math.nan),  # E4M3 has no infinity
        ("saved_fp8", f"{MATRIX}_scale", True, math.inf),
        ("saved", "output.bias", True, math.nan),
    ],
)
def test_a_weight_that_is_not_finite_is_named(
    request: pytest.FixtureRequest, tmp_path: Path, stored: str, name: str, fp8: bool, value: float
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(stored), tmp_path / "broken"))

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[name] = torch.full(tensors[name].shape, value).to(tensors[name].dtype)

    path = edit_shard(folder, name, spoil)
    message = re.escape(f"{path}: {name} holds NaN or infinity")
    with open_checkpoint(folder) as weights, pytest.raises(CheckpointError, match=message):
        filled(weights, fp8=fp8)


def test_a_codec_weight_that_is_not_finite_is_named(broken: Path) -> None:
    edit_shard(broken, "decoder.conv_in.bias", lambda t: t["decoder.conv_in.bias"].fill_(math.nan))
    with open_checkpoint(broken) as weights:
        load_photo_encoder(weights)
        with pytest.raises(CheckpointError, match=r"decoder\.conv_in\.bias holds NaN or infinity"):
            load_video_decoder(weights)


def test_floats_in_a_folder_that_says_fp8_are_refused(broken: Path) -> None:
    edit_config(broken, lambda d: d.update(precision="fp8"))
    assert "a tensor is missing: layers.0.attention.k.weight_scale" in refusal(broken)


@pytest.mark.parametrize("keep", [0, 4, 300, -1])
def test_a_truncated_shard_is_named(broken: Path, keep: int) -> None:
    path = shard_of(broken, MATRIX)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    size = len(whole[:keep])
    assert f"{path}: not a whole safetensors file ({size:,} bytes)" in refusal(broken)


@pytest.mark.parametrize(
    "header", [b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]", b"\x04" + b"\0" * 7 + b'{"a"']
)
def test_a_bad_header_is_named(broken: Path, header: bytes) -> None:
    path = shard_of(broken, MATRIX)
    path.write_bytes(header + b"\0" * 64)
    assert f"{path}: not a whole safetensors file" in refusal(broken)


def test_a_shard_that_is_gone_is_named(broken: Path) -> None:
    path = shard_of(broken, MATRIX)
    path.unlink()
    assert f"{path}: the index names this shard, but it is not there" in refusal(broken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not an index of shards"),
        ("{", "not an index of shards"),
        ('{"weight_map": {"a": 3}}', "not an index of shards"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "is not beside the index"),
        ('{"weight_map": {"a": "/etc/secret.safetensors"}}', "is not beside the index"),
    ],
)
def test_a_broken_index_is_named(broken: Path, text: str, message: str) -> None:
    path = broken / "dit" / "weights.safetensors.index.json"
    path.write_text(text)
    assert message in refusal(broken)
    assert str(path) in refusal(broken)


def test_an_index_that_is_wrong_about_a_place_is_named(broken: Path) -> None:
    here = shard_of(broken, MATRIX)
    other = shard_of(broken, "output_table")
    assert other != here
    edit_index(broken, lambda names: names.update({MATRIX: other.name}))
    assert f"{here}: has {MATRIX}, which the index puts into {other}" in refusal(broken)


def test_two_shards_with_the_same_tensor_are_refused(broken: Path) -> None:
    (broken / "dit" / "weights.safetensors.index.json").unlink()
    path = shard_of(broken, MATRIX)
    shutil.copy(path, path.with_name("zz.safetensors"))
    assert "zz.safetensors: " in refusal(broken)
    assert "is also in" in refusal(broken)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt"])
def test_a_pickle_is_never_opened(broken: Path, suffix: str) -> None:
    shutil.rmtree(broken / "dit")
    (broken / "dit").mkdir()
    pickle = broken / "dit" / f"model{suffix}"
    pickle.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    text = refusal(broken)
    assert f"{pickle}: a pickle can run code when it is opened" in text
    assert "safetensors" in text


def test_an_empty_or_absent_folder_is_named(broken: Path) -> None:
    shutil.rmtree(broken / "codec")
    assert "codec: no such folder" in refusal(broken)
    (broken / "codec").mkdir()
    assert "codec: no *.safetensors file in it" in refusal(broken)


# ---- the writer


def test_the_writer_takes_any_order_and_sizes(tmp_path: Path) -> None:
    tensors = {
        "odd": torch.randn(3).to(FP8),
        "wide": torch.randn(2, 5),
        "half": torch.randn(7).bfloat16(),
        "none": torch.zeros(0, 4),
    }
    plan = {name: Planned(tuple(t.shape), t.dtype) for name, t in tensors.items()}
    with ShardWriter(tmp_path, plan) as writer:
        for name in reversed(tensors):
            writer.write(name, tensors[name].split(2))
    read = load_file(tmp_path / "weights.safetensors")
    assert read.keys() == tensors.keys()
    assert all(torch.equal(bits(read[name]), bits(tensors[name])) for name in read)
    assert not list(tmp_path.glob("*.partial"))
    assert not list(tmp_path.glob("*.json"))


def test_the_writer_refuses_what_was_not_planned(tmp_path: Path) -> None:
    plan = {"a": Planned((4, 2), torch.float32)}
    with pytest.raises(ValueError, match="never written: a"), ShardWriter(tmp_path, plan):
        pass
    with (
        pytest.raises(ValueError, match="16 of its 32 bytes"),
        ShardWriter(tmp_path, plan) as writer,
    ):
        writer.write("a", [torch.zeros(2, 2)])
    with (
        pytest.raises(ValueError, match="more than its 32 bytes"),
        ShardWriter(tmp_path, plan) as writer,
    ):
        writer.write("a", [torch.zeros(2, 2)] * 3)
    with (
        pytest.raises(ValueError, match=r"planned as torch.float32, got torch.float64"),
        ShardWriter(tmp_path, plan) as writer,
    ):
        writer.write("a", [torch.zeros(4, 2, dtype=torch.float64)])
    assert not list(tmp_path.iterdir())
