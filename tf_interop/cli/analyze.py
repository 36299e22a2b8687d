"""The command `tf-interop analyze`: counts a model's independent convolutions."""

from __future__ import annotations

import dataclasses

import click

from tf_interop.cli import options
from tf_interop.cli.main import Result, command
from tf_interop.cli.progress import model_loaded

_ROWS = """The rows of the table:
  nodes              the operations of the graph
  convolutions       by their results: outputs (forward), or in training the gradients of
                     images (backward-input) and of filters (backward-filter); then by
                     the type of the operation
  longest chain      the largest number of convolutions that each need the one before
  most at one depth  the largest number of convolutions at one depth of the graph
  independent pairs  pairs that do not need each other
  groups             sets at one depth that could run together, as one stage
  unchanged          convolutions that cannot be in a stage; the reasons follow the table
The graph is counted after TensorFlow's own optimizations, as it is for stages."""


@command(
    """
analyze InceptionV3 --batch 8
analyze ResNet50 --training --json
analyze my_package.models:build --image-size 299x299
""",
    notes=_ROWS,
)
@options.model
@options.count(
    "--batch",
    "batch_size",
    default=1,
    least=1,
    help="The batch size, if the model leaves it open.",
)
@click.option("--training", is_flag=True, help="Analyze a training step instead of inference.")
@options.image_size
@options.jit_compile
def analyze(
    model: str,
    batch_size: int,
    training: bool,
    image_size: tuple[int, int] | None,
    jit_compile: bool,
) -> Result:
    """Counts the convolutions of MODEL, and how many are independent.

    Two convolutions are independent if neither needs the other's result. Independent convolutions
    can run together, as one stage. MODEL itself does not run.
    """
    with model_loaded(model, image_size, training=training) as (loaded, say):
        from tf_interop.model.analyze import analyze as analyze_model
        from tf_interop.model.keras_functions import keras_of

        say(f"Analyzing {model}")
        analysis = analyze_model(
            loaded,
            batch_size=batch_size,
            training=training,
            image_size=image_size,
            jit_compile=jit_compile,
        )
        if keras_of(loaded) is None:
            # TensorFlow's name, such as signature_wrapper___call__, means nothing to the user.
            analysis = dataclasses.replace(analysis, name=model)
    return Result(analysis, lambda: click.echo(str(analysis).rstrip()))
