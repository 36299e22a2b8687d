"""Joins the hosts of a cluster, so that one program can use all of their devices."""

from __future__ import annotations

import os
import socket
import sys
import time

import tensorflow as tf
from absl import logging

_SECONDS_BETWEEN_LOOKS = 2.0
_LOOKS = 5


def join_cluster() -> None:
    """Makes the devices of all hosts in the variable `TF_CONFIG` available to the first one.

    Run the same program on every host, each with its own `TF_CONFIG`, and call this before you use
    TensorFlow. On the first host, task 0 of the job `chief` or else `worker`, it returns, and
    `tf.config.list_logical_devices()` has the devices of all. On the other hosts it serves their
    devices, and ends the process some seconds after the program on the first host has ended.

    Without `TF_CONFIG` it does nothing, so the program also runs on one host.

    Raises:
        ValueError: `TF_CONFIG` does not name this host's task, or not as one of the cluster.
    """
    if "TF_CONFIG" not in os.environ:
        return
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec()
    job, task = resolver.task_type, resolver.task_id
    first = "chief" if "chief" in cluster.jobs else "worker"
    if (
        job not in cluster.jobs
        or task not in cluster.task_indices(job)
        or first not in cluster.jobs
    ):
        raise ValueError(
            "Expected TF_CONFIG to have a cluster with the job 'worker' or 'chief', and a task of "
            f"it, got the cluster {cluster.as_dict()} and the task {job!r} {task!r}. See "
            "TensorFlow's guide to multi-worker training."
        )
    if (job, task) == (first, 0):
        tf.config.experimental_connect_to_cluster(cluster, job_name=job, task_index=task)
        return
    server = tf.distribute.Server(cluster, job_name=job, task_index=task)
    logging.info("Serving the devices of %s at %s.", f"/job:{job}/task:{task}", server.target)
    _wait_for_end_of(cluster.task_address(first, 0))
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's server cannot be stopped


def _wait_for_end_of(address: str) -> None:
    """Returns once a server that was there has not answered for a while."""
    host, _, port = address.rpartition(":")
    was_there, missed = False, 0
    while missed < _LOOKS:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        try:
            socket.create_connection((host, int(port)), timeout=_SECONDS_BETWEEN_LOOKS).close()
            was_there, missed = True, 0
        except OSError:
            missed += was_there
