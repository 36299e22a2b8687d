"""What stages came to, for TensorBoard, as the event files that it reads.

`tf.summary.scalar` and `tf.summary.text` are part of TensorBoard, which need not be installed where
a program runs. `tf.summary.write` is TensorFlow's own, and takes what tells TensorBoard the kind.
"""

from __future__ import annotations

import dataclasses
import os

import tensorflow as tf

RUN_NAME = "conv_stages"
"""The folder in `log_dir`: TensorBoard shows it as a run beside Keras' `train` and `validation`."""

_PREFIX = "conv_stages/"

# tensorflow/core/framework/summary.proto, DataClass, whose names TensorFlow's API does not have.
_DATA_CLASSES = {"scalars": 1, "text": 2}


@dataclasses.dataclass(frozen=True)
class StageValues:
    """What stages came to in one epoch.

    Attributes:
        stages: stages in all graphs that were optimized since the call began.
        convolutions_in_stages: convolutions in these.
        stages_run: how many times a stage was run in this epoch.
        fallbacks: how often in this epoch something other than the plan's choice ran.
    """

    stages: int
    convolutions_in_stages: int
    stages_run: int
    fallbacks: int


class StageValuesWriter:
    """Writes into one event file, which begins with the first values."""

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self._folder = os.path.join(os.fspath(log_dir), RUN_NAME)  # noqa: PTH118 (gs:// as well)
        self._writer: tf.summary.SummaryWriter | None = None

    @property
    def has_written(self) -> bool:
        """Whether there are values."""
        return self._writer is not None

    def write(self, values: StageValues, epoch: int) -> None:
        """Adds scalars."""
        for name, value in dataclasses.asdict(values).items():
            self._write(name, tf.constant(value, tf.float32), epoch, "scalars")

    def write_text(self, text: str, epoch: int) -> None:
        """Adds a text that is shown as it is, line by line."""
        self._write("status", tf.constant(f"```\n{text}\n```"), epoch, "text")

    def close(self) -> None:
        """Ends the file. Does nothing where there is none."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, name: str, value: tf.Tensor, epoch: int, kind: str) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._folder)
        metadata = tf.compat.v1.SummaryMetadata()
        metadata.plugin_data.plugin_name = kind
        metadata.data_class = _DATA_CLASSES[kind]
        with self._writer.as_default():
            tf.summary.write(_PREFIX + name, value, epoch, metadata)
