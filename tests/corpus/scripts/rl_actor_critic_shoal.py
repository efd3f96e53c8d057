# backends: tensorflow
# agrees: rounding
"""Actor-critic again: episodes are played as before, and their steps are given to a decorated function as one batch."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import shoal
import tensorflow as tf
from cartpole import CartPole
from keras import layers

keras.utils.set_random_seed(42)
gamma, env = 0.99, CartPole(42)
inputs = layers.Input(shape=(4,))
common = layers.Dense(32, activation="relu")(inputs)
model = keras.Model(inputs, [layers.Dense(2)(common), layers.Dense(1)(common)])
optimizer = keras.optimizers.Adam(learning_rate=0.01)


@shoal.step(model)
def learn(states, actions, returns):
    with tf.GradientTape() as tape:
        logits, values = model(states, training=True)
        chosen = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)
        advantage = returns - values[:, 0]
        loss = tf.reduce_mean(chosen * tf.stop_gradient(advantage) + tf.square(advantage))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


lengths = []
for episode in range(8):
    state, done, states, actions, rewards = env.reset(), False, [], [], []
    while not done:
        logits, _ = model(state[None])
        probabilities = tf.nn.softmax(logits)[0].numpy().astype("float64")
        action = np.random.choice(2, p=probabilities / probabilities.sum())
        states.append(state)
        actions.append(action)
        state, reward, done = env.step(action)
        rewards.append(reward)
    returns = np.zeros(len(rewards), "float32")
    running = 0.0
    for place in reversed(range(len(rewards))):
        returns[place] = running = rewards[place] + gamma * running
    loss = learn(np.stack(states), np.array(actions), returns)
    lengths.append(len(rewards))
    print(f"episode {episode}: loss {float(loss):.2f}")
print("episodes", len(lengths), "mean length", np.mean(lengths))
