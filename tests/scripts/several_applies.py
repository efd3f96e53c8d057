"""Steps that apply several optimizers, or one several times. For own_steps.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from outcomes import told

BACKEND = keras.backend.backend()


class Steps(keras.Model):
    """What the backends' styles have in common: two networks, two optimizers, two trackers."""

    def __init__(self, random: bool = False) -> None:
        super().__init__()
        noise = [layers.Dropout(0.3, seed=1), layers.BatchNormalization()] if random else []
        self.critic = keras.Sequential([layers.Input((6,)), layers.Dense(16, "tanh"), *noise, layers.Dense(1)])
        self.maker = keras.Sequential([layers.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(6)])
        self.shadow = keras.models.clone_model(self.maker)
        self.shadow.set_weights(self.maker.get_weights())
        self.shadow.trainable = False
        self.critic_loss = keras.metrics.Mean(name="critic_loss")
        self.maker_loss = keras.metrics.Mean(name="maker_loss")
        self.built = True

    def two(self, critic: Any, maker: Any) -> keras.Model:
        """Compiled with two optimizers. On JAX the model's own holds both, since the step's state is its variables."""
        if BACKEND == "jax":
            both = Both(critic, maker)
            critic.build(self.critic.trainable_variables)
            maker.build(self.maker.trainable_variables)
            both.built = True
            self.compile(both)
        else:
            self.compile()
        self.critic_optimizer, self.maker_optimizer = critic, maker
        return self

    @property
    def metrics(self) -> list[Any]:
        return [self.critic_loss, self.maker_loss]

    def of_critic(self, real: Any) -> Any:
        return ops.mean(ops.softplus(-self.critic(real, training=True))) + ops.mean(
            ops.softplus(self.critic(self.maker(ops.flip(real, 1), training=True), training=True))
        )

    def of_maker(self, real: Any) -> Any:
        return ops.mean(ops.softplus(-self.critic(self.maker(ops.flip(real, 1), training=True), training=True)))

    def variables_of_step(self) -> list[Any]:
        return [*self.trainable_variables, *self.non_trainable_variables]


class Both(keras.optimizers.Optimizer):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(0.1)
        self.first, self.second = first, second

    @property
    def variables(self) -> list[Any]:
        return [*self.first.variables, *self.second.variables]


def follow(shadow: Any, maker: Any) -> Any:
    return 0.9 * shadow + 0.1 * maker


if BACKEND == "jax":
    import jax

    class Game(Steps):
        """Critic, then maker, then the shadow network follows the maker."""

        rounds = 1

        def train_step(self, state: Any, data: Any) -> Any:
            trainable, others, optimizer, metrics = state
            count = len(self.critic.trainable_variables)
            first = len(self.critic_optimizer.variables)
            critic, maker = trainable[:count], trainable[count:]
            of_critic, of_maker = optimizer[:first], optimizer[first:]

            def run(loss: Any, critic: Any, maker: Any, others: Any) -> Any:
                values = list(zip(self.variables_of_step(), [*critic, *maker, *others], strict=True))
                with keras.StatelessScope(state_mapping=values) as scope:
                    found = loss(data)
                return found, [scope.get_current_value(v) for v in self.non_trainable_variables]

            for _ in range(self.rounds):
                (critic_loss, others), given = jax.value_and_grad(
                    lambda c, others=others: run(self.of_critic, c, maker, others), has_aux=True
                )(critic)
                critic, of_critic = self.critic_optimizer.stateless_apply(of_critic, given, critic)
                critic = [ops.clip(weight, -0.3, 0.3) for weight in critic]
            (maker_loss, others), given = jax.value_and_grad(
                lambda m, others=others: run(self.of_maker, critic, m, others), has_aux=True
            )(maker)
            maker, of_maker = self.maker_optimizer.stateless_apply(of_maker, given, maker)
            places = {id(v): i for i, v in enumerate(self.non_trainable_variables)}
            new = {id(v): value for v, value in zip(self.maker.trainable_variables, maker, strict=True)}
            for own, watched in zip(self.shadow.weights, self.maker.weights, strict=True):
                others[places[id(own)]] = follow(others[places[id(own)]], new[id(watched)])
            count = len(self.critic_loss.variables)
            metrics = [
                *self.critic_loss.stateless_update_state(metrics[:count], critic_loss),
                *self.maker_loss.stateless_update_state(metrics[count:], maker_loss),
            ]
            logs = {
                "critic": self.critic_loss.stateless_result(metrics[:count]),
                "maker": self.maker_loss.stateless_result(metrics[count:]),
                "sum": critic_loss + maker_loss,
            }
            return logs, (critic + maker, others, of_critic + of_maker, metrics)

else:
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def gradients(loss: Callable[[], Any], weights: list[Any]) -> tuple[Any, list[Any]]:
            with tf.GradientTape() as tape:
                found = loss()
            return found, tape.gradient(found, weights)

    else:

        def gradients(loss: Callable[[], Any], weights: list[Any]) -> tuple[Any, list[Any]]:
            for weight in weights:
                weight.value.grad = None
            found = loss()
            found.backward()
            return found, [weight.value.grad for weight in weights]

    class Game(Steps):
        """Critic, then maker, then the shadow network follows the maker."""

        rounds = 1

        def train_step(self, data: Any) -> Any:
            for _ in range(self.rounds):
                weights = self.critic.trainable_weights
                critic_loss, given = gradients(lambda: self.of_critic(data), weights)
                self.critic_optimizer.apply(given, weights)
                for weight in weights:
                    weight.assign(ops.clip(weight, -0.3, 0.3))
            weights = self.maker.trainable_weights
            maker_loss, given = gradients(lambda: self.of_maker(data), weights)
            self.maker_optimizer.apply_gradients(zip(given, weights, strict=True))
            for own, watched in zip(self.shadow.weights, self.maker.weights, strict=True):
                own.assign(follow(own, watched))
            self.critic_loss.update_state(critic_loss)
            self.maker_loss.update_state(maker_loss)
            return {
                "critic": self.critic_loss.result(),
                "maker": self.maker_loss.result(),
                "sum": critic_loss + maker_loss,
            }


def data(samples: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(samples, 6)).astype("float32")


def game(rounds: int, random: bool, callbacks: list[Any]) -> dict[str, Any]:
    keras.utils.set_random_seed(2)
    critic, maker = keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01)
    model = Game(random).two(critic, maker)
    model.rounds = rounds
    # The last batch has fewer rows than a step has pieces.
    history = model.fit(data(66), batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=callbacks).history
    numbers = [float(number) for values in history.values() for number in values]
    return told([*model.variables, *critic.variables, *maker.variables], numbers)


def scenes(callbacks: list[Any], few: bool) -> dict[str, Any]:
    """No random numbers and no BatchNorm in the first, so that plain Keras is the witness for the numbers."""
    if few:
        return {"several applies": game(2, False, callbacks)}
    return {"several applies": game(2, False, []), "several applies, random": game(1, True, callbacks)}
