"""Lists the convolutions of five networks, for a GPU machine to measure without TensorFlow.

    python python/profiling/export_configurations.py FOLDER

writes a list for each network, batch size, and inference or training step, named so that their
order is the order to measure them in: GoogLeNet first, small batches first.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib

import tf_interop

NETWORKS = {
    "googlenet": "python.models.googlenet:googlenet",
    "inception_v3": "InceptionV3",
    "squeezenet": "python.models.squeezenet:squeezenet",
    "resnet50": "ResNet50",
    "nasnet_mobile": "NASNetMobile",
}


def main() -> None:
    """Reads the command line and writes the lists."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="some of them, with commas")
    parser.add_argument("--batch", default="1,8,32,128", help="batch sizes, with commas")
    parser.add_argument("--for", dest="target", default="9.0", help="cpu, or a compute capability")
    parser.add_argument("--max-pairs", type=int, default=32, help="the most pairs of one list")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    batches = map(int, arguments.batch.split(","))
    lists = itertools.product(arguments.networks.split(","), batches, (False, True))
    for number, (network, batch, training) in enumerate(lists, start=1):
        collected = tf_interop.collect_configurations(
            [NETWORKS[network]],
            tf_interop.CollectOptions(
                batch_sizes=(batch,),
                inference=not training,
                training=training,
                compute_capability=None if arguments.target == "cpu" else arguments.target,
                max_pairs=arguments.max_pairs,
            ),
        )
        what = "training" if training else "inference"
        path = arguments.folder / f"{number:02}-{network}-{batch}-{what}.json"
        tf_interop.save_configurations(collected.configurations, path)
        print(f"{path}: {len(collected.configurations.convolutions)} convolutions", flush=True)


if __name__ == "__main__":
    main()
