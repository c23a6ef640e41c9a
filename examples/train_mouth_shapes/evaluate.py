"""Measure the net on speech it was not trained on, through the stream that the engine runs.

    python evaluate.py [--weights mouth_shapes.npz] [--aligned human.npz ...]

Prints, per voice: correlation and best lag of the lips' gap, what part of the lips' closures
touches and how often they touch where they should not, teeth on lip found and false, rounding,
and the floor: how well plain loudness would have done.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from articulation import LIPS_MEET, SHAPES, TEETH_ON_LIP, Span, at_frames, curves
from sentences import HELD_OUT
from voices import Espeak, Utterance

from talking_avatar.engine.base import FPS, SAMPLES_PER_FRAME, Controls, SpeechWindow
from talking_avatar.engine.portrait import speech
from talking_avatar.engine.portrait.performer import Performer

Floats = npt.NDArray[np.float32]


def windows(samples: Floats) -> list[SpeechWindow]:
    """Cut speech as the session does, one frame a chunk, with all of the look-ahead known."""
    num_frames = -(-len(samples) // SAMPLES_PER_FRAME)
    span = SAMPLES_PER_FRAME + speech.LOOKAHEAD_SAMPLES
    padded = np.pad(samples, (0, num_frames * SAMPLES_PER_FRAME + span - len(samples)))
    return [
        SpeechWindow(k, padded[k * SAMPLES_PER_FRAME :][:span].astype(np.float32), span, True)
        for k in range(num_frames)
    ]


def perform(samples: Floats) -> Floats:
    """Play speech as the engine does: (frames, 6), the shapes of the mouth."""
    performer, rows = Performer(0), []
    for window in windows(samples):
        (face,) = performer.perform(window, Controls())
        rows.append([getattr(face.mouth, name) for name in SHAPES])
    return np.array(rows, np.float32)


def wanted(utterance: Utterance) -> Floats:
    """What the phonemes ask for: (frames, 8)."""
    num_frames = -(-len(utterance.samples) // SAMPLES_PER_FRAME)
    drawn = curves(utterance.spans, utterance.duration_s + 0.1)
    return at_frames(drawn, np.arange(num_frames) / FPS)


def frames_of(span: Span, num_frames: int) -> slice:
    """Frames that show any of a phoneme."""
    first = int(span.start_s * FPS)
    return slice(min(first, num_frames - 1), min(int(np.ceil(span.end_s * FPS)), num_frames))


def share(spans: list[Span], per_frame: npt.NDArray[np.bool_]) -> float:
    """Part of the phonemes of which at least one frame is marked."""
    return float(
        np.mean([per_frame[frames_of(s, len(per_frame))].any() for s in spans] or [np.nan])
    )


def best_lag(said: Floats, asked: Floats) -> int:
    """Frames by which what is said comes late."""
    scores = {
        lag: np.corrcoef(np.roll(said, -lag)[4:-4], asked[4:-4])[0, 1] for lag in range(-3, 4)
    }
    return max(scores, key=lambda lag: scores[lag])


@dataclass(frozen=True, slots=True)
class Score:
    """One voice's result."""

    open: float
    lag: int
    closed: float
    closed_false: float
    teeth: float
    teeth_false: float
    pucker: float
    spread: float
    loudness: float

    def __str__(self) -> str:
        return (
            f"open {self.open:.3f} lag {self.lag:+d} | closures {self.closed:.1%}, false "
            f"{self.closed_false:.1%} | teeth {self.teeth:.1%}, false {self.teeth_false:.1%} | "
            f"pucker {self.pucker:.2f} spread {self.spread:.2f} | by loudness {self.loudness:.2f}"
        )


TOUCHING = 0.05
"""Gap below which lips touch: 1.4 % of the mouth's width."""


def score(utterances: list[Utterance], said: list[Floats]) -> Score:
    """Compare what was heard with what the phonemes ask for."""
    asked = np.concatenate([wanted(u) for u in utterances])
    heard = np.concatenate(said)
    offsets = np.cumsum([0, *(len(s) for s in said)]) / FPS
    spans = [
        Span(s.start_s + at, s.end_s + at, s.ipa)
        for u, at in zip(utterances, offsets, strict=False)
        for s in u.spans
    ]
    column = {name: k for k, name in enumerate(SHAPES)}
    closed = heard[:, 0] < TOUCHING
    teeth = heard[:, column["teeth_on_lip"]] > 0.5
    loud = np.concatenate(
        [
            np.log(np.add.reduceat(np.square(u.samples), np.arange(0, len(u.samples), 1000)) + 1e-3)
            for u in utterances
        ]
    )
    open_said, open_asked = heard[:, 0], asked[:, 0]
    near_f = np.maximum.reduce([np.roll(asked[:, column["teeth_on_lip"]], k) for k in (-1, 0, 1)])
    return Score(
        open=float(np.corrcoef(open_said, open_asked)[0, 1]),
        lag=best_lag(open_said, open_asked),
        closed=share([s for s in spans if s.ipa in LIPS_MEET], closed),
        closed_false=float(closed[open_asked > 0.25].mean()),
        teeth=share([s for s in spans if s.ipa in TEETH_ON_LIP], teeth),
        teeth_false=float(teeth[near_f < 0.2].mean()),
        pucker=float(np.corrcoef(heard[:, 3], asked[:, 3])[0, 1]),
        spread=float(np.corrcoef(heard[:, 2], asked[:, 2])[0, 1]),
        loudness=float(np.corrcoef(loud, open_asked)[0, 1]),
    )


def load_aligned(path: Path) -> list[Utterance]:
    """Read utterances written by `align_recordings.py`."""
    with np.load(path) as stored:
        return [
            Utterance(
                str(stored[f"{k}.voice"]),
                stored[f"{k}.samples"].astype(np.float32) / 32_768.0,
                tuple(
                    Span(float(a), float(b), str(ipa))
                    for (a, b), ipa in zip(stored[f"{k}.times_s"], stored[f"{k}.ipa"], strict=True)
                ),
            )
            for k in range(int(stored["count"]))
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, help="instead of the package's own")
    parser.add_argument("--aligned", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    if args.weights:
        net = speech.MouthNet(dict(np.load(args.weights)))
        speech.load_net = lambda: net
    espeak = Espeak()
    groups = {
        f"{voice} {wpm}": [espeak.say(text, voice=voice, words_a_minute=wpm) for text in HELD_OUT]
        for voice, wpm in (("en-us", 150), ("en-us", 190), ("en-us+f4", 165), ("en-us+m6", 165))
    }
    for path in args.aligned:
        groups[path.stem] = load_aligned(path)
    for name, utterances in groups.items():
        print(f"{name:18s} {score(utterances, [perform(u.samples) for u in utterances])}")


if __name__ == "__main__":
    main()
