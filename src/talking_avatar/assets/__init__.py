"""What the package brings along to be tried with: a portrait and a sentence, as files on disk.

Never imported by any other room of the package, only by its command line, examples and tests.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def portrait_path() -> Path:
    """The bundled portrait: Grace Hopper, public domain, 512x600 JPEG."""
    return Path(str(files(__name__).joinpath("portrait.jpg")))


def speech_path() -> Path:
    """The bundled speech: Jane Austen read for LibriVox, public domain, 7.1 s of FLAC."""
    return Path(str(files(__name__).joinpath("speech.flac")))
