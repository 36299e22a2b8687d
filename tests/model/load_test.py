"""Loading the models that MODEL arguments name, and the errors if there is none."""

from __future__ import annotations

import pathlib
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
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


GRAPH_DEF = graph_pb2.GraphDef()
GRAPH_DEF.node.add(name="image", op="Placeholder")


def _write_module(text: str) -> None:
    pathlib.Path("models_of_this_test.py").write_text(textwrap.dedent(text))


def test_application_with_random_weights() -> None:
    pathlib.Path("MobileNet").mkdir()  # the application takes precedence
    assert load_model("MobileNet").input_shape == (None, 224, 224, 3)
    assert load_model("MobileNet", image_size=(64, 96)).input_shape == (None, 64, 96, 3)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.filterwarnings("ignore:You are saving")
def test_keras_file(model: tf.keras.Model, suffix: str) -> None:
    model.save(f"saved{suffix}")
    loaded = load_model(f"saved{suffix}")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


@pytest.mark.filterwarnings("ignore:You are saving")
def test_refuses_code_in_hdf5_that_tf_keras_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    code = tf_keras.layers.Lambda(lambda x: x + 1)
    tf_keras.Sequential([tf_keras.layers.InputLayer((4,)), code]).save("model.h5")
    loaded: list[object] = []
    monkeypatch.setattr(tf.keras.models, "load_model", loaded.append)
    with pytest.raises(ModelArgumentError, match="Lambda"):
        load_model("model.h5")
    assert not loaded


def test_saved_model_gives_its_serving_signature(model: tf.keras.Model) -> None:
    model.export("exported", verbose=False)
    function = load_model("exported")
    assert isinstance(function, tf.types.experimental.ConcreteFunction)
    # The variables stay alive, although nothing else refers to the loaded model.
    [output] = tf.function(function)(tf.zeros((2, 8, 8, 3))).values()
    assert output.shape == (2, 6, 6, 4)
    with pytest.raises(ModelArgumentError, match="name its folder"):
        load_model("exported/saved_model.pb")


def test_saved_model_gives_its_only_signature() -> None:
    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec(())])
    tf.saved_model.save(module, "one", signatures={"double": module.double})
    [output] = load_model("one")(tf.constant(3.0)).values()
    assert output.numpy() == 6
    tf.saved_model.save(module, "two", signatures={"a": module.double, "b": module.double})
    with pytest.raises(ModelArgumentError, match=r"\['a', 'b'\]"):
        load_model("two")
    tf.saved_model.save(tf.Module(), "none")
    with pytest.raises(ModelArgumentError, match=r"but has \[\]"):
        load_model("none")


def test_graph_def_file() -> None:
    pathlib.Path("graph.pb").write_bytes(GRAPH_DEF.SerializeToString())
    pathlib.Path("graph.pbtxt").write_text(text_format.MessageToString(GRAPH_DEF))
    assert load_model("graph.pb") == load_model("graph.pbtxt") == GRAPH_DEF


def test_function_of_a_module_in_the_working_directory() -> None:
    _write_module(
        """
        import tensorflow as tf

        def sized(image_size=(8, 8)):
            image = tf.keras.Input((*image_size, 3))
            return tf.keras.Model(image, tf.keras.layers.ReLU()(image))

        def unsized():
            return sized()

        double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec(())])
        """
    )
    for name, image_size, expected in (
        ("sized", None, (8, 8)),
        ("sized", (16, 24), (16, 24)),
        ("unsized", (16, 24), (8, 8)),
    ):
        model = load_model(f"models_of_this_test:{name}", image_size=image_size)
        assert model.input_shape == (None, *expected, 3)
    # A tf.function is not called.
    assert load_model("models_of_this_test:double")(tf.constant(3.0)).numpy() == 6
    with pytest.raises(ModelArgumentError, match="'unsized'"):
        load_model("models_of_this_test:unsize")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: .*'no_such_dependency'"),
        ("def build(:", r"SyntaxError: .*models_of_this_test.py, line 1"),
        ("def build():\n    raise KeyError('filters')", "KeyError: 'filters' .*, line 2"),
        ("def build(depth): pass", r"TypeError: .*'depth'"),
        ("exit(5)", "SystemExit: 5"),
    ],
)
def test_reports_the_error_in_the_code_of_a_model_and_its_line(code: str, what: str) -> None:
    _write_module(code)
    with pytest.raises(ModelArgumentError, match=f"models_of_this_test:build.* failed with {what}"):
        load_model("models_of_this_test:build")


def test_lets_a_memory_error_of_the_code_through() -> None:
    _write_module("def build(): raise MemoryError")
    with pytest.raises(MemoryError):
        load_model("models_of_this_test:build")


@pytest.mark.parametrize(
    ("argument", "content", "message"),
    [
        ("ResNet5", None, "'ResNet50'"),
        ("no_such_module:build", None, "'no_such_module'"),
        ("missing.keras", None, "'missing.keras'"),
        ("folder/missing", None, "'folder/missing'"),
        ("model.onnx", b"", "'model.onnx' is no model"),
        ("train.py", b"", "'train.py' is no model.* call tf-interop run"),
        ("damaged.keras", b"no archive", "'damaged.keras'"),
        ("damaged.h5", b"no HDF5", "'damaged.h5'"),
        ("damaged.pb", b"no protobuf \xff", "GraphDef"),
        ("empty.pbtxt", b"", "GraphDef"),
        ("damaged/saved_model.pb", b"no protobuf", "SavedModel"),
        ("empty/model", b"", "SavedModel"),
    ],
)
def test_refuses_what_names_no_model(argument: str, content: bytes | None, message: str) -> None:
    path = pathlib.Path(argument)
    if content is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        argument = argument if path.parent == pathlib.Path() else str(path.parent)
    with pytest.raises(ModelArgumentError, match=message):
        load_model(argument)


def test_refuses_an_image_size_that_the_application_does_not_take() -> None:
    with pytest.raises(ModelArgumentError, match="32x32"):
        load_model("ResNet50", image_size=(8, 8))
