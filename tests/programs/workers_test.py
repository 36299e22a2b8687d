"""Training across processes."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np

TIMEOUT_S = 180
STEPS = 4


def find_free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def run_workers(folder: pathlib.Path, count: int) -> list[str]:
    """Runs the workers to their end. Returns what each of them printed."""
    addresses = [f"localhost:{port}" for port in find_free_ports(count)]
    workers = []
    try:
        for index in range(count):
            config = {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": index},
            }
            workers.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        str(pathlib.Path(__file__).with_name("train_worker.py")),
                        str(folder / f"{index}.npz"),
                    ],
                    env=os.environ | {"TF_CONFIG": json.dumps(config)},
                    stdout=subprocess.PIPE,
                    stderr=(folder / f"{index}.log").open("w"),
                    text=True,
                )
            )
        outputs = []
        for index, worker in enumerate(workers):
            output, _ = worker.communicate(timeout=TIMEOUT_S)
            assert worker.returncode == 0, (folder / f"{index}.log").read_text()[-4000:]
            outputs.append(output)
        return outputs
    finally:
        # One that failed leaves the other waiting for it.
        for worker in workers:
            worker.kill()
            worker.wait()


def test_two_workers_reach_the_same_weights(tmp_path: pathlib.Path) -> None:
    outputs = run_workers(tmp_path, 2)
    results = [np.load(tmp_path / f"{index}.npz") for index in range(2)]
    for output, result in zip(outputs, results, strict=True):
        assert "tf_interop is on, policy always" in output
        # The three convolutions are a stage, and their gradients by filter another.
        assert result["stages_run"] == 2 * STEPS
        assert f"stages run: {2 * STEPS}" in output
        for number in range(4):
            # TensorFlow's convolutions of random numbers round in another order.
            np.testing.assert_allclose(
                result[f"with_{number}"], result[f"without_{number}"], rtol=1e-5, atol=1e-6
            )
    for name in results[0].files:
        np.testing.assert_array_equal(results[0][name], results[1][name])
