"""Train the mouth-shape net and write its weights.

    python train.py --output ../../src/talking_avatar/engine/portrait/mouth_shapes.npz

About ten minutes of one core. Seeded: the same machine gives the same weights. See README.md.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
import torch
from articulation import CURVES
from sentences import sentences
from streams import Stream, streams
from torch import Tensor, nn
from voices import Espeak, Utterance, flite

from talking_avatar.engine.portrait.speech import (
    _DB_PER_UNIT,
    _RANGE_DB,
    AHEAD_COLUMNS,
    NUM_MELS,
    PAST_COLUMNS,
    WINDOW_COLUMNS,
)

TRAINED_ESPEAK = [
    *(f"en-us+m{k}" for k in (1, 2, 3, 4, 5, 7, 8)),
    *(f"en-us+f{k}" for k in (1, 2, 3, 5)),
    "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-us+klatt", "en-us+klatt3", "en-029",
]  # fmt: skip
TRAINED_FLITE = ("slt", "rms", "awb", "kal16")
GATES = [CURVES.index(name) for name in ("teeth_on_lip", "closure", "voice")]
WEIGHTS = torch.tensor([5.0, 2.0, 1.0, 1.5, 0.8, 1.0, 0.8, 0.3])
"""Of each output in the loss; the lips' gap counts most."""


class Net(nn.Module):
    """What `talking_avatar.engine.portrait.speech.MouthNet` computes, for training."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(NUM_MELS, 64, 4, stride=2)
        self.second = nn.Conv1d(64, 112, 4, stride=2)
        self.dense = nn.Linear(112 * 8, 160)
        self.out = nn.Linear(160, len(CURVES))
        self.drop = nn.Dropout(0.12)

    def forward(self, columns_BCM: Tensor) -> Tensor:
        hidden = torch.relu(self.first(columns_BCM.transpose(1, 2)))
        hidden = torch.relu(self.second(hidden)).transpose(1, 2).flatten(1)
        return self.out(self.drop(torch.relu(self.dense(self.drop(hidden)))))

    def export(self, path: Path) -> None:
        """Write the weights as float16, laid out for plain matrix products."""
        arrays: dict[str, np.ndarray] = {}
        for name, layer in self.named_children():
            if isinstance(layer, nn.Conv1d | nn.Linear):
                weight = layer.weight.detach().flatten(1).T
                arrays[f"{name}.weight"] = weight.numpy().astype(np.float16)
                arrays[f"{name}.bias"] = layer.bias.detach().numpy().astype(np.float16)
        np.savez_compressed(path, **arrays)


def speak(num_espeak: int, num_flite: int) -> list[Utterance]:
    """Make the training speech."""
    espeak = Espeak()
    dice = np.random.default_rng(1)
    utterances = [
        espeak.say(
            text,
            voice=voice,
            words_a_minute=int(dice.integers(120, 215)),
            pitch=int(dice.integers(25, 80)),
        )
        for text, voice in zip(
            sentences(num_espeak, 1), itertools.cycle(TRAINED_ESPEAK), strict=False
        )
    ]
    utterances += [
        flite(text, voice, stretch=float(dice.uniform(0.8, 1.25)))
        for text, voice in zip(
            sentences(num_flite, 2), itertools.cycle(TRAINED_FLITE), strict=False
        )
    ]
    return utterances


class Examples:
    """Random windows of many streams, as training batches."""

    def __init__(self, parts: list[Stream]) -> None:
        pad = PAST_COLUMNS
        columns = [np.pad(s.columns, ((pad, WINDOW_COLUMNS), (0, 0)), "edge") for s in parts]
        levels = [np.pad(s.level_db, (pad, WINDOW_COLUMNS), "edge") for s in parts]
        labels = [np.pad(s.labels, ((pad, WINDOW_COLUMNS), (0, 0)), "edge") for s in parts]
        own = [np.arange(len(s.columns)) + pad for s in parts]
        offsets = np.cumsum([0, *(len(c) for c in columns)])[:-1]
        self.columns = torch.tensor(np.concatenate(columns)).half()
        self.levels = torch.tensor(np.concatenate(levels))
        self.labels = torch.tensor(np.concatenate(labels)).half()
        self.frames = torch.tensor(
            np.concatenate([o + k for o, k in zip(own, offsets, strict=True)])
        )

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """A batch; in a sixth of it the end of the look-ahead has not arrived."""
        frame = self.frames[torch.randint(len(self.frames), (count,))]
        last = torch.full((count,), WINDOW_COLUMNS - PAST_COLUMNS - 1)
        late = torch.rand(count) < 0.17
        last[late] -= torch.randint(1, AHEAD_COLUMNS + 2, (int(late.sum()),))
        steps = torch.arange(-PAST_COLUMNS, WINDOW_COLUMNS - PAST_COLUMNS)
        window = torch.minimum(steps[None], last[:, None]) + frame[:, None]
        columns = self.columns[window].float() - self.levels[frame + last][:, None, None]
        # How far consonants lie below vowels, the speaker's color, the level: all may differ.
        columns *= torch.empty(count, 1, 1).uniform_(0.87, 1.15)
        columns += torch.randn(count, 1, NUM_MELS).mul(0.5).cumsum(-1)
        columns += torch.randn(count, 1, 1) * 1.5 + torch.randn(columns.shape)
        return columns.clamp(*_RANGE_DB) / _DB_PER_UNIT, self.labels[frame].float()


def loss_of(said: Tensor, wanted: Tensor) -> Tensor:
    """Squared error of the shapes, cross-entropy of the gates."""
    error = (said - wanted).square()
    gates = nn.functional.binary_cross_entropy_with_logits(
        said[:, GATES], wanted[:, GATES], reduction="none"
    )
    error[:, GATES] = gates
    return (error * WEIGHTS).mean()


def train(num_steps: int, num_espeak: int, num_flite: int, variants: int) -> Net:
    torch.manual_seed(0)
    begun = time.monotonic()
    utterances = speak(num_espeak, num_flite)
    minutes = sum(u.duration_s for u in utterances) / 60.0
    examples = Examples([s for seed in range(variants) for s in streams(utterances, seed)])
    print(f"{minutes:.0f} minutes of speech, {len(examples.frames):,} examples", flush=True)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, num_steps, pct_start=0.1)
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )
    for step in range(num_steps):
        columns, wanted = examples.draw(512)
        loss = loss_of(net(columns), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(net)
        if step % 500 == 0:
            print(f"{step:6d} {loss.item():.4f} {time.monotonic() - begun:4.0f} s", flush=True)
    assert isinstance(average.module, Net)
    return average.module.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=11_000)
    parser.add_argument("--espeak", type=int, default=520)
    parser.add_argument("--flite", type=int, default=680)
    parser.add_argument("--variants", type=int, default=3)
    args = parser.parse_args()
    train(args.steps, args.espeak, args.flite, args.variants).export(args.output)


if __name__ == "__main__":
    main()
