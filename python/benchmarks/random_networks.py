"""Compares random networks whose variables change between and during calls with stock TensorFlow.

A seed makes a network and a script of calls and updates. The script runs without the plugin, and
again with it. Values are of the size that trained networks have, so that a wrong fold shows.
Folding rounds differently: results may move eight times as far as in stock TensorFlow when the last
bit of every pixel and variable changes, plus four roundings. Where nothing is folded, bits are the
same.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

import tf_interop
from python.benchmarks.applications import Numbers, distances, nudge
from python.benchmarks.result_file import Case
from python.benchmarks.rounding import share_of_tolerance
from tf_interop.runtime.plugin import get_plugin

SIZE = 6
CALLS = 8
CALLS_DURING_UPDATES = 40
GRAPHS = 2400
GRAPHS_PER_ROW = 100

raw = tf.raw_ops
Layer = Callable[[tf.Tensor], tf.Tensor]


class RandomNetwork:
    """A function of images that a seed makes.

    Attributes:
        variables: all of them, in the order of their first use.
        roles: what each is for, which decides about its values.
        initial: their first values.
        read_once: whether a variable is read at one place, outside of branches and loops.
        writes: whether the function writes a variable.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.variables: list[tf.Variable] = []
        self.roles: list[str] = []
        self.initial: list[np.ndarray] = []
        self.read_once: list[bool] = []
        self.writes = False
        self._random = random.Random(seed)
        self._depth = 0  # of branches and loops
        numbers = np.random.default_rng(seed)
        self.width = int(numbers.choice([4, 4, 8, 8, 24, 48]))
        batch = None if numbers.random() < 0.5 else 2
        self.batches = [1, 2, 3] if batch is None else [batch]
        self.function = tf.function(
            self._network,
            input_signature=[tf.TensorSpec([batch, SIZE, SIZE, self.width])],
            autograph=False,
        )

    def set_initial(self) -> None:
        """Sets the first values, in variables that no sparse update has written."""
        for variable, value in zip(self.variables, self.initial, strict=True):
            raw.DisableCopyOnRead(resource=variable.handle)
            variable.assign(value)

    def _network(self, images: tf.Tensor) -> list[tf.Tensor]:
        tensors = [images]
        for _ in range(self._random.randint(2, 7)):
            tensors.append(self._block(tensors))
        return tensors[-2:] if self._draw(0.1) else tensors[-1:]

    def _draw(self, probability: float) -> bool:
        return self._random.random() < probability

    def _parameter(self, role: str, *shape: int) -> tf.Tensor:
        """The value of a variable, mostly a new one."""
        same = [
            number
            for number, variable in enumerate(self.variables)
            if variable.shape == shape and self.roles[number] == role
        ]
        if same and self._draw(0.15):
            number = self._random.choice(same)
            self.read_once[number] = False
        else:
            number = len(self.variables)
            numbers = np.random.default_rng([self.seed, number])
            self.initial.append(value_for(role, shape, numbers))
            self.roles.append(role)
            self.read_once.append(not self._depth)
            # A function that makes a `tf.Variable` is traced twice.
            with tf.init_scope():
                self.variables.append(ResourceVariable(self.initial[-1]))
        value = self.variables[number].read_value()
        if self._draw(0.1):
            value = tf.identity(value)
        if self._draw(0.1):
            match self._random.choice(["scaled", "summed", "squared"]):
                case "scaled":
                    value = value * self._parameter(role if role == "positive" else "factor")
                case "summed":
                    value = value + 0.1 * self._parameter(role, *shape)
                case _:
                    value = value * tf.sqrt(tf.square(self._parameter("positive")) + 0.1)
        return value

    def _block(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """One more tensor of the shape of `tensors`."""
        x = self._random.choice(tensors[-2:])
        match self._random.choice([*["layer"] * 25, "concat", "branch", "loop", "order", "write"]):
            case "concat":
                half = self.width // 2
                return tf.concat([self._layer(x, half), self._layer(x, half)], -1)
            case "branch":
                with self._inside():
                    return tf.cond(
                        tf.shape(x)[0] > 1, lambda: self._layer(x), lambda: self._layer(x)
                    )
            case "loop":
                with self._inside():
                    result = tf.while_loop(
                        lambda i, _: i < 2, lambda i, v: (i + 1, self._layer(v)), (0, x)
                    )[1]
                return tf.ensure_shape(result, x.shape)
            case "order":
                first = self._layer(x)
                with tf.control_dependencies([first]):
                    return first + self._layer(x)
            case "write":
                return self._writing(x)
            case _:
                result = self._layer(x)
                if self._draw(0.5):
                    other = self._random.choice(tensors)
                    result = tf.add_n([other, result]) if self._draw(0.2) else result + other
                    result = self._activation(result)
                return result

    def _writing(self, x: tf.Tensor) -> tf.Tensor:
        """Layers around an update of a variable that they read."""
        first = len(self.variables)
        before = self._layer(x)
        places = range(first, len(self.variables))
        written = self.variables[self._random.choice(places or range(first))]
        for place in places:
            self.read_once[place] = False
        self.writes = True
        mean = tf.reduce_mean(tf.abs(before))
        match self._random.choice(["add", "moving", "called"]):
            case "add":
                written.assign_add(0.01 * mean * tf.ones_like(written))
            case "moving":
                written.assign_sub((written - mean) * 0.05)
            case _:
                self._called = tf.function(lambda: written.assign(written * 0.9), autograph=False)
                self._called()
        return before + tf.reduce_mean(written) * x

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def _layer(self, x: tf.Tensor, channels: int | None = None) -> tf.Tensor:
        """A convolution or product with what may precede and follow it."""
        depth, channels = x.shape[-1], channels or self.width
        if self._draw(0.15):
            x = self._activation(self._normalized(x, "NHWC"))
        kinds = ["plain"] * 5 + ["depthwise"] * 2
        kinds += ["grouped", "transposed", "volume", "product", "product", "NCHW", "NCHW"]
        layout = "NHWC"
        match self._random.choice(kinds):
            case "plain":
                size = self._random.choice([1, 3])
                filters = self._parameter("filter", size, size, depth, channels)
                explicit = [[0, 0], [1, size - 2], [0, size - 1], [0, 0]]
                padding = explicit if size == 3 and self._draw(0.2) else "SAME"
                dilations = self._random.choice([1, 1, 1, 2])
                if padding != "SAME":
                    dilations = 1
                y = tf.nn.conv2d(x, filters, 1, padding, dilations=dilations)
            case "grouped":
                groups = 2
                filters = self._parameter("filter", 3, 3, depth // groups, channels)
                y = tf.nn.conv2d(x, filters, 1, "SAME")
            case "depthwise":
                if channels < depth:
                    x = x[..., :channels]
                filters = self._parameter("filter", 3, 3, channels, 1)
                y = tf.nn.depthwise_conv2d(x, filters, [1] * 4, "SAME")
            case "transposed":
                filters = self._parameter("filter", 3, 3, channels, depth)
                shape = tf.concat([tf.shape(x)[:-1], [channels]], 0)
                y = tf.nn.conv2d_transpose(x, filters, shape, 1, "SAME")
                y.set_shape([*x.shape[:-1], channels])
            case "volume":
                filters = self._parameter("filter", 1, 3, 3, depth, channels)
                y = tf.nn.conv3d(
                    tf.reshape(x, [-1, 2, SIZE // 2, SIZE, depth]), filters, [1] * 5, "SAME"
                )
                layout = "NDHWC"
            case "product":
                transpose = self._draw(0.3)
                shape = (channels, depth) if transpose else (depth, channels)
                weights = self._parameter("filter", *shape)
                y = tf.matmul(tf.reshape(x, [-1, depth]), weights, transpose_b=transpose)
                layout = ""
            case _:
                layout = "NCHW"
                x = tf.transpose(x, [0, 3, 1, 2])
                if self._draw(0.3) and channels == depth:
                    filters = self._parameter("filter", 3, 3, depth, 1)
                    y = tf.nn.depthwise_conv2d(x, filters, [1] * 4, "SAME", data_format=layout)
                else:
                    filters = self._parameter("filter", 3, 3, depth, channels)
                    y = tf.nn.conv2d(x, filters, 1, "SAME", data_format=layout)
        for _ in range(self._random.choice([0, 1, 1, 2, 2, 3])):
            y = self._changed(y, layout)
        y = self._activation(y)
        if layout == "NCHW":
            y = tf.transpose(y, [0, 2, 3, 1])
        return tf.reshape(y, [-1, SIZE, SIZE, channels]) if layout != "NHWC" else y

    def _per_channel(self, role: str, channels: int, layout: str) -> tf.Tensor:
        """A parameter that broadcasts to one value for each channel, or for all of them."""
        rank = len(layout) or 2
        if layout == "NCHW":
            shapes: list[tuple[int, ...]] = [(channels, 1, 1), (1, channels, 1, 1)]
        else:
            shapes = [(channels,), (channels,), (1,) * (rank - 1) + (channels,), (1, channels)]
        shapes += [(), (1,)]
        shape = self._random.choice(shapes)
        if shape and self._draw(0.3):
            value = self._parameter(role, int(np.prod(shape)))
            return tf.reshape(value, shape)
        return self._parameter(role, *shape)

    def _changed(self, y: tf.Tensor, layout: str) -> tf.Tensor:
        """A factor, an offset or a normalization after a convolution."""
        channels = y.shape[1 if layout == "NCHW" else -1]
        kinds = ["bias", "add", "subtract", "multiply", "constant", "normalize"] * 3
        kinds += ["other side", "divide", "read twice"]
        match self._random.choice(kinds):
            case "bias" if layout != "NDHWC":
                bias = self._parameter("offset", channels)
                return tf.nn.bias_add(y, bias, "NCHW" if layout == "NCHW" else None)
            case "bias" | "add":
                return y + self._per_channel("offset", channels, layout)
            case "subtract":
                return y - self._per_channel("offset", channels, layout)
            case "multiply":
                return self._per_channel("factor", channels, layout) * y
            case "other side":
                return self._per_channel("offset", channels, layout) - y
            case "divide":
                return y / self._per_channel("positive", channels, layout)
            case "constant":
                return y * 1.25 + 0.5
            case "read twice":
                return y + 0.1 * tf.square(y)
            case _:
                return self._normalized(y, layout)

    def _normalized(self, y: tf.Tensor, layout: str) -> tf.Tensor:
        channels = y.shape[1 if layout == "NCHW" else -1]
        roles = ("offset", "positive", "offset", "factor")
        mean, variance, offset, scale = (self._parameter(role, channels) for role in roles)
        if layout in ("NHWC", "NCHW") and self._draw(0.4):
            return raw.FusedBatchNormV3(
                x=y,
                scale=scale,
                offset=offset,
                mean=mean,
                variance=variance,
                is_training=False,
                data_format=layout,
            ).y
        if layout == "NCHW":
            mean, variance, offset, scale = (
                tf.reshape(each, [1, channels, 1, 1]) for each in (mean, variance, offset, scale)
            )
        return tf.nn.batch_normalization(y, mean, variance, offset, scale, 1e-3)

    def _activation(self, y: tf.Tensor) -> tf.Tensor:
        activations: list[Layer] = [
            *(tf.nn.relu, tf.nn.relu, tf.nn.relu6, tf.nn.elu, tf.nn.sigmoid, tf.nn.silu),
            lambda x: tf.nn.leaky_relu(x, 0.3),
            *(tf.identity, tf.identity),
        ]
        return self._random.choice(activations)(y)


def value_for(role: str, shape: Sequence[int], numbers: np.random.Generator) -> np.ndarray:
    """A random value of a variable."""
    if role == "filter":
        value = numbers.normal(0, (1.5 / max(1, np.prod(shape[:-1]))) ** 0.5, shape)
    elif role == "offset":
        value = numbers.normal(0, 0.3, shape)
    else:
        value = numbers.uniform(0.5, 1.5, shape)
        if role == "factor":
            value = value * numbers.choice([-1, 1], shape)
    return np.asarray(value, np.float32)


def aligned(value: np.ndarray) -> np.ndarray:
    """A copy in memory that TensorFlow's kernels can read."""
    memory = np.zeros([value.nbytes + 64], np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + value.nbytes].view(np.float32).reshape(value.shape)
    array[...] = value
    return array


class Updates:
    """Brings variables to given values, or some of the way, in every way that TensorFlow has."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._checkpoint = str(folder / "checkpoint")
        self._shared: list[np.ndarray] = []
        self.kinds: dict[str, Callable[[tf.Variable, np.ndarray], object]] = {
            "assign": lambda v, new: v.assign(new),
            "assign a tensor": lambda v, new: v.assign(tf.constant(new)),
            "assign_add": lambda v, new: v.assign_add(new - v.numpy()),
            "assign_sub": lambda v, new: v.assign_sub(v.numpy() - new),
            "slice": lambda v, new: v[:1].assign(new[:1]),
            "scatter_update": lambda v, new: v.scatter_update(tf.IndexedSlices(new[:1], [0])),
            "scatter_nd_update": lambda v, new: v.scatter_nd_update([[0]], new[:1]),
            "gradient descent": lambda v, new: raw.ResourceApplyGradientDescent(
                var=v.handle, alpha=1.0, delta=v.numpy() - new
            ),
            "momentum": lambda v, new: raw.ResourceApplyMomentum(
                var=v.handle,
                accum=tf.Variable(tf.zeros_like(v)).handle,
                lr=1.0,
                grad=v.numpy() - new,
                momentum=0.9,
            ),
            "adam": lambda v, new: raw.ResourceApplyAdam(
                var=v.handle,
                m=tf.Variable(tf.zeros_like(v)).handle,
                v=tf.Variable(tf.zeros_like(v)).handle,
                beta1_power=0.9,
                beta2_power=0.99,
                lr=0.01,
                beta1=0.9,
                beta2=0.99,
                epsilon=1e-7,
                grad=v.numpy() - new,
            ),
            "checkpoint": self._restore,
            "memory of DLPack": self._share,
            "write into memory of DLPack": self._write_shared,
        }

    def _restore(self, variable: tf.Variable, new: np.ndarray) -> None:
        written = tf.train.Checkpoint(v=tf.Variable(new)).write(self._checkpoint)
        tf.train.Checkpoint(v=variable).read(written)

    def _share(self, variable: tf.Variable, new: np.ndarray) -> None:
        self._shared.append(aligned(new))
        variable.assign(tf.experimental.dlpack.from_dlpack(self._shared[-1].__dlpack__()))

    def _write_shared(self, variable: tf.Variable, new: np.ndarray) -> None:
        del variable, new
        for array in self._shared:
            array *= 0.95


def run_script(network: RandomNetwork, *, nudged: bool = False) -> list[Numbers]:
    """Calls a network after updates of its variables.

    Args:
        network: the network.
        nudged: whether the last bits of images and variables change before every call.

    Returns:
        The results of each call, then the variables.
    """
    if not network.variables:
        network.function.get_concrete_function()
    choose = random.Random(network.seed)
    numbers = np.random.default_rng(network.seed)
    # Few variables, so that each changes again and again.
    count = len(network.variables)
    places = choose.sample(range(count), min(count, 5))
    results = []
    network.set_initial()
    with tempfile.TemporaryDirectory() as folder:
        updates = Updates(pathlib.Path(folder))
        for _ in range(CALLS):
            for _ in range(choose.choice([0, 0, 1, 1, 2, 5])):
                number = choose.choice(places)
                variable = network.variables[number]
                new = value_for(network.roles[number], variable.shape, numbers)
                kind = choose.choice(list(updates.kinds))
                if variable.shape.rank or kind not in _FOR_ROWS:
                    updates.kinds[kind](variable, new)
            shape = [choose.choice(network.batches), SIZE, SIZE, network.width]
            images = numbers.normal(size=shape).astype(np.float32)
            results.append(call(network, images, nudged=nudged))
        return [*results, [each.numpy() for each in network.variables]]


_FOR_ROWS = {"slice", "scatter_update", "scatter_nd_update"}


def call(network: RandomNetwork, images: np.ndarray, *, nudged: bool = False) -> Numbers:
    """The results of one call."""
    if nudged:
        images = nudge(images)
        for variable in network.variables:
            variable.assign(nudge(variable.numpy()))
    return [each.numpy() for each in network.function(tf.constant(images))]


def worst_share(got: Numbers, stock: Numbers, nudged: Numbers) -> float:
    """The largest change of a tensor over the tolerance."""
    assert all(np.isfinite(each).all() for each in stock)
    moves = zip(distances(got, stock), distances(nudged, stock), strict=True)
    return max((share_of_tolerance(*each) for each in moves), default=0.0)


def compare(seed: int) -> dict[str, Any]:
    """Runs the script of a seed without and with the plugin.

    Returns:
        `share`: the largest change over the tolerance. `same_bits`: whether nothing differs.
        `folds`, `kept`: how many folds were made, and how many tensors are kept. `during`: the
        largest share of calls during updates, None if the network has none.
    """
    network = RandomNetwork(seed)
    tf_interop.disable()
    stock, nudged = run_script(network), run_script(network, nudged=True)
    states = _switching_states(network) if seed % 4 == 0 else None
    expected = [_call_in_state(network, state) for state in states or ()]
    plugin = get_plugin()
    plugin.forget_reports()
    tf_interop.enable()
    got = run_script(network)
    assert not plugin.failures, plugin.failures
    during = _share_during_updates(network, states, expected) if states else None
    reports = plugin.fold_reports
    return {
        "share": max(map(worst_share, got, stock, nudged)),
        "same_bits": all(
            np.array_equal(one, other)
            for one, other in zip(itertools.chain(*got), itertools.chain(*stock), strict=True)
        ),
        "folds": sum(each.fold_count for each in reports),
        "kept": sum(each.kept_count for each in reports),
        "during": during,
    }


def is_right(row: dict[str, Any]) -> bool:
    """Whether rounding explains all differences, and bits are the same where nothing is folded."""
    is_explained = row["share"] <= 1 and (row["during"] or 0) <= 1
    return is_explained and (row["same_bits"] or row["folds"] > 0)


_State = tuple[tuple[int, np.ndarray], ...]
"""Numbers and values of some variables."""


def _switching_states(network: RandomNetwork) -> list[_State] | None:
    """All states of up to two variables with two values each; None if no call is comparable.

    A call may read different values at two places, and writes would add up.
    """
    numbers = np.random.default_rng(network.seed)
    once = [number for number, is_once in enumerate(network.read_once) if is_once]
    if network.writes or not once:
        return None
    values = []
    for number in numbers.permutation(once)[:2]:
        first = network.initial[number]
        new = value_for(network.roles[number], first.shape, numbers)
        values.append([(int(number), first), (int(number), first + (new - first))])
    return list(itertools.product(*values))


def _images(network: RandomNetwork) -> np.ndarray:
    numbers = np.random.default_rng(network.seed)
    return numbers.normal(size=[2, SIZE, SIZE, network.width]).astype(np.float32)


def _call_in_state(network: RandomNetwork, state: _State) -> tuple[Numbers, Numbers]:
    """The results of stock TensorFlow, and those after changes of the last bits."""

    def call_once(nudged: bool) -> Numbers:
        network.set_initial()
        for number, value in state:
            network.variables[number].assign(value)
        return call(network, _images(network), nudged=nudged)

    return call_once(False), call_once(True)


def _share_during_updates(
    network: RandomNetwork, states: list[_State], expected: list[tuple[Numbers, Numbers]]
) -> float:
    """How far results are from those of the nearest state, while a thread switches states."""
    network.set_initial()
    first, last = dict(states[0]), dict(states[-1])
    choose = random.Random(network.seed)
    is_over = threading.Event()

    def switch() -> None:
        # After each of these a variable has one of its two values.
        while not is_over.is_set():
            for number, value in first.items():
                network.variables[number].assign_add(last[number] - value)
                time.sleep(choose.choice([0, 0, 0.001, 0.01]))
                network.variables[number].assign(value)

    thread = threading.Thread(target=switch)
    thread.start()
    try:
        shares = []
        for _ in range(CALLS_DURING_UPDATES):
            got = call(network, _images(network))
            shares.append(min(worst_share(got, *each) for each in expected))
        return max(shares)
    finally:
        is_over.set()
        thread.join()


def measure(name: str) -> dict[str, Any]:
    """Compares the networks of the seeds that a name such as "seeds 0 to 99" gives."""
    _, first, _, last = name.split()
    seeds = range(int(first), int(last) + 1)
    rows = {seed: compare(seed) for seed in seeds}
    during = [row["during"] for row in rows.values() if row["during"] is not None]
    return {
        "folds": sum(row["folds"] for row in rows.values()),
        "kept tensors": sum(row["kept"] for row in rows.values()),
        "with folds": sum(row["folds"] > 0 for row in rows.values()),
        "with the same bits": sum(row["same_bits"] for row in rows.values()),
        "updated during calls": len(during),
        "share of tolerance": max(row["share"] for row in rows.values()),
        "during updates": max(during, default=None),
        "wrong seeds": " ".join(str(seed) for seed, row in rows.items() if not is_right(row)),
    }


CASE = Case(
    title="Same results: random networks with updates",
    says=f"""
Random networks whose variables are updated in many ways between {CALLS} calls, with `enable()` and
in stock TensorFlow. "With folds" counts the networks in which something is folded, and "with the
same bits" those whose results do not differ; both count the networks of a row. In those "updated
during calls" another thread switches up to two variables between two values each, and every call
must give the results of one value of each. "Share of tolerance" is the largest change; the
tolerance is eight times the change that altered last bits cause in stock TensorFlow, plus four
roundings. "Wrong seeds" would be errors: a share above 1, or other bits where nothing is folded.
""",
    networks=tuple(
        f"seeds {first} to {first + GRAPHS_PER_ROW - 1}"
        for first in range(0, GRAPHS, GRAPHS_PER_ROW)
    ),
    measure=measure,
    is_right=lambda row: not row["wrong seeds"],
)
