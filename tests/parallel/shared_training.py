"""The beginning of programs that train on several devices and on one, and compare the numbers."""

from __future__ import annotations

PROGRAM = """
    import gc
    import os
    import threading
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from python.benchmarks.divided_training import handed_layers, make_devices, plan_of, strategies
    from tf_interop.parallel import divide, kept_shares
    from tf_interop.runtime.plugin import get_plugin

    count = int(os.environ.get("DEVICES", 2))
    devices = make_devices(count)
    random = np.random.default_rng(0)
    images = random.normal(size=(96, 8, 8, 4)).astype(np.float32)
    labels = random.integers(0, 10, 96)

    def make(optimizer, **options):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([
            keras.Input((8, 8, 4)),
            keras.layers.Conv2D(32, 5, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, jit_compile=False, **options)
        return model

    def fit(model, epochs=1, first=96, **options):
        '''Trains on the first images; if their number is no multiple of 16, with unknown shapes.'''
        options = dict(batch_size=16, shuffle=False, verbose=0, epochs=epochs, **options)
        return model.fit(images[:first], labels[:first], **options).history["loss"]

    def values_of(model):
        return [each.numpy() for each in model.variables + model.optimizer.variables]

    def assert_close(ours, stock):
        for a, b in zip(ours, stock, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    def planned(call):
        '''The plan of `strategy` for the graph of a first call.'''
        layers = handed_layers(call)
        division = dict(strategies(layers, count))[os.environ.get("STRATEGY", "data")]
        return plan_of(layers, division, devices)

    def share_of(model):
        '''Trains as `strategy` says from now on.'''
        plan = planned(lambda: fit(make(keras.optimizers.SGD())))
        tf_interop.enable(parallel=plan)
        return plan

    def held(model):
        '''The number of variables that devices have in shares.'''
        variables = model.variables + model.optimizer.variables
        return sum(id(vars(each._value)["_handle"]) in kept_shares._holders for each in variables)
"""
