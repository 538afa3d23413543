"""FedJAX: synchronous FedAvg, as many clients a round as the buffer has. Softmax regression only.

FedJAX simulates no time. Its clients are compiled; the warm-up run compiles them.
"""

from __future__ import annotations

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from common import Clock, Work, load, report
from fedjax.algorithms import fed_avg

jax.tree_map = jax.tree.map  # the name that FedJAX knows it by
work, clock = load(), Clock()
assert work.model == "softmax", f"{work.model}: only softmax is written in JAX here"


def loss(weights: jax.Array, batch: dict, rng: jax.Array) -> jax.Array:
    logits = batch["x"] @ weights
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1).mean()


inputs = (work.x.flatten(1).float() * (1 / 255)).numpy()
labels = work.y.numpy().astype(np.int32)
clients = fedjax.InMemoryFederatedData(
    {b"%04d" % client: {"x": inputs[shard], "y": labels[shard]} for client, shard in enumerate(work.shards)}
)


def run(work: Work, updates: int) -> np.ndarray:
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=None, num_steps=work.steps),
    )
    state = algorithm.init(jnp.zeros((784, 10), jnp.float32))
    sampler = fedjax.client_samplers.UniformGetClientSampler(clients, num_clients=work.size, seed=1)
    clock.start()
    for _ in range(updates // work.size):
        state, _ = algorithm.apply(state, sampler.sample())
    state.params.block_until_ready()
    clock.stop()
    return np.asarray(state.params).T.reshape(-1)


run(work, 10 * work.size)
done = run(work, work.updates)
report(work, clock, done, work.updates // work.size * work.size)
