"""What a MODEL argument stands for, and what is said where it stands for nothing."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2

from tf_interop.model.load import ModelArgumentError, load_model


@pytest.fixture(autouse=True)
def fixture_working_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pathlib.Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("models_of_this_test", None)


@pytest.fixture(scope="module", name="model")
def fixture_model() -> tf.keras.Model:
    return tf.keras.Sequential([tf.keras.Input((8, 8, 3)), tf.keras.layers.Conv2D(4, 3)])


def _graph_def() -> graph_pb2.GraphDef:
    graph_def = graph_pb2.GraphDef()
    graph_def.node.add(name="image", op="Placeholder")
    return graph_def


def _write_module(text: str) -> None:
    pathlib.Path("models_of_this_test.py").write_text(textwrap.dedent(text))


def test_application_with_random_weights() -> None:
    model = load_model("MobileNet")
    assert model.input_shape == (None, 224, 224, 3)
    assert any("conv" in layer.name for layer in model.layers)


def test_application_at_an_image_size() -> None:
    assert load_model("MobileNet", image_size=(64, 96)).input_shape == (None, 64, 96, 3)


def test_function_gets_the_image_size_where_it_takes_one() -> None:
    _write_module(
        """
        import tensorflow as tf

        def sized(image_size=(8, 8)):
            image = tf.keras.Input((*image_size, 3))
            return tf.keras.Model(image, tf.keras.layers.ReLU()(image))

        def unsized():
            return sized()
        """
    )
    for name, image_size, expected in (
        ("sized", None, (8, 8)),
        ("sized", (16, 24), (16, 24)),
        ("unsized", (16, 24), (8, 8)),
    ):
        model = load_model(f"models_of_this_test:{name}", image_size=image_size)
        assert model.input_shape == (None, *expected, 3)


def test_application_goes_before_a_folder_of_its_name() -> None:
    pathlib.Path("MobileNet").mkdir()
    assert load_model("MobileNet", image_size=(32, 32)).name.startswith("mobilenet")
    with pytest.raises(ModelArgumentError, match="to hold a SavedModel, got none"):
        load_model("./MobileNet")


def test_refuses_an_image_size_that_the_application_does_not_take() -> None:
    with pytest.raises(ModelArgumentError, match=r"image size that ResNet50 takes.*at least 32x32"):
        load_model("ResNet50", image_size=(8, 8))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.filterwarnings("ignore:You are saving")
def test_keras_file(model: tf.keras.Model, suffix: str) -> None:
    model.save(f"saved{suffix}")
    loaded = load_model(f"saved{suffix}")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_refuses_a_damaged_keras_file() -> None:
    pathlib.Path("damaged.keras").write_bytes(b"no archive")
    with pytest.raises(ModelArgumentError, match=r"whole Keras model in 'damaged.keras', got"):
        load_model("damaged.keras")


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_runs_no_python_code_from_a_keras_file(suffix: str) -> None:
    model = tf.keras.Sequential(
        [tf.keras.Input((8, 8, 3)), tf.keras.layers.Lambda(lambda x: x + 1)]
    )
    model.save(f"model{suffix}")
    with pytest.raises(ModelArgumentError, match=r"Lambda"):
        load_model(f"model{suffix}")


def test_runs_no_python_code_where_keras_would() -> None:
    """tf_keras loads a Lambda layer out of HDF5 and runs it; the file is refused before."""
    program = textwrap.dedent("""
        import tensorflow as tf
        from tf_interop.model.load import ModelArgumentError, load_model

        code = tf.keras.layers.Lambda(lambda x: [print("code was run"), x][1])
        model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), code])
        model.save("model.h5")
        print("saved")
        try:
            load_model("model.h5")
        except ModelArgumentError as error:
            print(error)
    """)
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    after = result.stdout.partition("saved\n")[2]
    assert "Expected a model without Python code in 'model.h5', got a Lambda layer" in after
    assert "code was run" not in after


def test_saved_model_gives_its_serving_signature(model: tf.keras.Model) -> None:
    model.export("exported", verbose=False)
    function = load_model("exported")
    assert isinstance(function, tf.types.experimental.ConcreteFunction)
    # Its variables live on, although nothing else refers to what was loaded.
    [output] = tf.function(function)(tf.zeros((2, 8, 8, 3))).values()
    assert output.shape == (2, 6, 6, 4)


def test_saved_model_gives_its_only_signature() -> None:
    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec(())])
    tf.saved_model.save(module, "one", signatures={"double": module.double})
    [output] = load_model("one")(tf.constant(3.0)).values()
    assert output.numpy() == 6
    tf.saved_model.save(module, "two", signatures={"a": module.double, "b": module.double})
    with pytest.raises(ModelArgumentError, match=r"or one alone.*\['a', 'b'\].*module:function"):
        load_model("two")


def test_refuses_a_saved_model_that_does_not_load() -> None:
    pathlib.Path("damaged").mkdir()
    pathlib.Path("damaged/saved_model.pb").write_bytes(b"no protobuf")
    with pytest.raises(ModelArgumentError, match="SavedModel that loads from 'damaged'"):
        load_model("damaged")


def test_graph_def_file() -> None:
    pathlib.Path("graph.pb").write_bytes(_graph_def().SerializeToString())
    pathlib.Path("graph.pbtxt").write_text(text_format.MessageToString(_graph_def()))
    assert load_model("graph.pb") == _graph_def()
    assert load_model("graph.pbtxt") == _graph_def()


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt"])
@pytest.mark.parametrize("content", [b"no protobuf \xff", b""])
def test_refuses_a_file_without_a_graph_def(name: str, content: bytes) -> None:
    pathlib.Path(name).write_bytes(content)
    with pytest.raises(ModelArgumentError, match=f"Expected a GraphDef in '{name}'"):
        load_model(name)


def test_refuses_the_file_inside_a_saved_model(model: tf.keras.Model) -> None:
    model.export("exported", verbose=False)
    with pytest.raises(ModelArgumentError, match="For a SavedModel name its folder"):
        load_model("exported/saved_model.pb")


def test_function_of_a_module_in_the_working_directory() -> None:
    _write_module(
        """
        import tensorflow as tf

        def build():
            return tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(5)])

        double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec(())])
        """
    )
    assert load_model("models_of_this_test:build").output_shape == (None, 5)
    # A tf.function is what was asked for, and not called.
    double = load_model("models_of_this_test:double")
    assert double(tf.constant(3.0)).numpy() == 6


def test_module_that_is_missing_or_misspelled() -> None:
    _write_module("def build_model(): pass")
    with pytest.raises(ModelArgumentError, match="module 'no_such_module' to import"):
        load_model("no_such_module:build")
    with pytest.raises(ModelArgumentError, match="Did you mean 'build_model'"):
        load_model("models_of_this_test:build_modle")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import no_such_dependency", r"ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("def build(:", r"SyntaxError: invalid syntax \(models_of_this_test.py, line 1\)"),
        (
            "def build():\n    raise KeyError('filters')",
            r"KeyError: 'filters' \(models_of_this_test.py, line 2\)",
        ),
        ("def build(depth): pass", r"TypeError: build\(\) missing 1 required .*: 'depth'\."),
        ("exit(5)", "SystemExit: 5"),
    ],
)
def test_says_what_the_code_of_a_model_raised_and_where(code: str, what: str) -> None:
    _write_module(code)
    with pytest.raises(ModelArgumentError, match=f"models_of_this_test:build.*, got {what}"):
        load_model("models_of_this_test:build")


def test_memory_that_is_used_up_is_not_taken_for_a_fault_of_the_code() -> None:
    _write_module("def build(): raise MemoryError")
    with pytest.raises(MemoryError):
        load_model("models_of_this_test:build")


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("ResNet5", "ResNet50"),
        ("inceptionv3", "InceptionV3"),
        ("EfficientNet_B0", "EfficientNetB0"),
    ],
)
def test_misspelled_application(argument: str, meant: str) -> None:
    with pytest.raises(
        ModelArgumentError, match=rf"Expected the name of .*Did you mean.*'{meant}'"
    ):
        load_model(argument)


@pytest.mark.parametrize("argument", ["missing.keras", "missing.pb", "folder/missing"])
def test_refuses_a_path_without_a_file(argument: str) -> None:
    with pytest.raises(ModelArgumentError, match=f"file or folder at '{argument}', got none"):
        load_model(argument)


def test_refuses_a_file_of_another_kind() -> None:
    pathlib.Path("model.onnx").touch()
    with pytest.raises(ModelArgumentError, match=r"ends in one of \.keras.*got 'model.onnx'"):
        load_model("model.onnx")
