"""Several processes, each with some of the devices: all make the same program, and run it together."""

import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

PROCESSES, DEVICES = 2, 4
PROGRAM = """
    import hashlib, sys
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", {devices})
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize("127.0.0.1:{port}", {processes}, int(sys.argv[1]))
    import spmd_compiler as spmd

    def loss(p, x):
        return ((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2).mean()

    def step(p, x):
        value, grads = jax.value_and_grad(loss)(p, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads), value

    mesh = spmd.create_mesh([("data", {processes}), ("model", {devices})])
    layouts = {{"a": P(None, "model"), "b": P("model")}}

    def place(x, spec):
        sharding = NamedSharding(mesh.to_jax(), spec)
        return jax.make_array_from_callback(x.shape, sharding, lambda i: x[i])

    rng = np.random.RandomState(0)
    host = {{"a": rng.randn(16, 32).astype(np.float32), "b": rng.randn(32, 16).astype(np.float32)}}
    x = rng.randn(8, 16).astype(np.float32)
    params, batch = {{k: place(v, layouts[k]) for k, v in host.items()}}, place(x, P("data"))
    train = spmd.spmd_jit(step, mesh=mesh, in_layouts=(layouts, P("data")), out_layouts=(layouts, P()))
    print(hashlib.sha256(train.lower(params, batch).stablehlo().encode()).hexdigest())
    for _ in range(3):
        params, value = train(params, batch)
        host, wanted = jax.jit(step)(host, x)
    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-4)
    for name, array in params.items():
        for shard in array.addressable_shards:
            np.testing.assert_allclose(shard.data, np.asarray(host[name])[shard.index], rtol=1e-4, atol=1e-5)
"""


def test_two_processes_train_together():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = textwrap.dedent(PROGRAM).format(port=port, processes=PROCESSES, devices=DEVICES)
    root = str(Path(__file__).parents[2])
    running = []
    for i in range(PROCESSES):
        # other orders of sets and dicts of objects must not make another program
        env = {**os.environ, "PYTHONPATH": root, "XLA_FLAGS": "", "PYTHONHASHSEED": str(i)}
        command = [sys.executable, "-c", program, str(i)]
        running.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        ended = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, ended, strict=True):
        assert process.returncode == 0, errors[-3000:]
    digests = [re.findall(r"^[0-9a-f]{64}$", out, re.MULTILINE) for out, _ in ended]
    assert digests[0] == digests[1] != []
