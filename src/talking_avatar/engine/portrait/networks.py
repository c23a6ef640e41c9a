"""How this engine uses OpenCV inside somebody else's process: its threads, its three networks.

Takes: the name of a vendored network. Gives: a callable, safe to share between threads.
Never: leaves the process's OpenCV settings changed.

OpenCV has one thread count for the whole process, and its idle workers spin: rendering 704x1088
on a pool of two took 154 % of a core where 55 % is enough. So each unit of work runs inside
`opencv_threads`, which sets the count and puts the caller's own back. Setting and restoring takes
0.3 us (OpenCV 5.0, pthreads).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from threading import Lock
from typing import Literal, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

NetworkName: TypeAlias = Literal[
    "face_detection_short_range", "face_landmark", "selfie_segmentation"
]

_threads_lock = Lock()
_num_inside = 0
_callers_count = 0


@contextmanager
def opencv_threads(num_threads: int = 1) -> Iterator[None]:
    """Run OpenCV on this many threads; the last to leave restores the caller's own count.

    Overlapping uses from several threads share the setting: counting them is what keeps one from
    "restoring" a value that another has set.
    """
    global _num_inside, _callers_count
    with _threads_lock:
        if _num_inside == 0:
            _callers_count = cv2.getNumThreads()
        _num_inside += 1
        cv2.setNumThreads(num_threads)
    try:
        yield
    finally:
        with _threads_lock:
            _num_inside -= 1
            if _num_inside == 0:
                cv2.setNumThreads(_callers_count)


class Network:
    """One vendored network: read when first called, then kept.

    A `cv2.dnn.Net` holds its input between two calls, so calls take turns.
    """

    def __init__(self, name: NetworkName, outputs: tuple[str, ...]) -> None:
        self._name = name
        self._outputs = outputs
        self._net: cv2.dnn.Net | None = None
        self._lock = Lock()

    def __call__(self, image: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], ...]:
        """Run it on one image.

        Args:
            image: float32 (H, W, 3), in the size and range that the network wants.

        Returns:
            One float32 array per output, in the order given to the constructor.
        """
        with self._lock, opencv_threads():
            if self._net is None:
                self._net = _read(self._name)
            self._net.setInput(np.ascontiguousarray(image.transpose(2, 0, 1)[None]))
            outputs = self._net.forward(list(self._outputs))
        return tuple(np.asarray(output, dtype=np.float32).copy() for output in outputs)


def _read(name: NetworkName) -> cv2.dnn.Net:
    # By its path: OpenCV 5.0 ignores the choice of engine for a model given as a buffer.
    with as_file(files(__package__).joinpath("models", f"{name}.tflite")) as path:
        if int(cv2.__version__.split(".")[0]) >= 5:
            # The new graph engine of OpenCV 5 loses outputs of these networks; 1 is the classic.
            return cv2.dnn.readNetFromTFLite(str(path), 1)
        return cv2.dnn.readNetFromTFLite(str(path))
