"""Recordings and their text in, an .npz for `evaluate.py` out.

    python align_recordings.py human.npz transcription.txt clip1.wav clip2.wav ...

The transcription has a line per clip: ``<s> words of the clip </s> (clip1)``.
Needs pocketsphinx (PyPI).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
from voices import SAMPLE_RATE, Utterance, align, read_wav


def save(path: Path, utterances: list[Utterance]) -> None:
    """Write utterances: int16 samples at 24 kHz, phonemes and their times."""
    arrays: dict[str, object] = {"count": len(utterances)}
    for k, utterance in enumerate(utterances):
        arrays[f"{k}.voice"] = utterance.voice
        arrays[f"{k}.samples"] = np.round(utterance.samples * 32_767).astype(np.int16)
        arrays[f"{k}.times_s"] = np.array([(s.start_s, s.end_s) for s in utterance.spans])
        arrays[f"{k}.ipa"] = np.array([s.ipa for s in utterance.spans])
    np.savez_compressed(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("transcription", type=Path)
    parser.add_argument("clips", type=Path, nargs="+")
    args = parser.parse_args()
    lines = re.findall(r"<s> (.*?) </s> \((.*?)\)", args.transcription.read_text())
    texts = {name: text for text, name in lines}
    utterances = []
    for clip in args.clips:
        pcm, rate = read_wav(clip)
        import soxr

        samples = soxr.resample(pcm.astype(np.float32) / 32_768.0, rate, SAMPLE_RATE)
        utterances.append(align(samples.astype(np.float32), texts[clip.stem], voice=clip.stem))
    save(args.output, utterances)


if __name__ == "__main__":
    main()
