# backends: torch
# agrees: refused: outside of fit() would train each worker's copy of the model by itself
"""REINFORCE: a Keras policy, one of torch's optimizers, a loop over episodes."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from cartpole import CartPole

keras.utils.set_random_seed(3)
policy = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(24, activation="relu"), keras.layers.Dense(2)])
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
env, rewards = CartPole(3), []
for episode in range(12):
    state, done, logs, gained = env.reset(), False, [], 0.0
    while not done:
        choice = torch.distributions.Categorical(logits=policy(state[None]))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state, reward, done = env.step(int(action))
        gained += reward
    loss = -torch.cat(logs).sum() * (gained - (np.mean(rewards) if rewards else 0)) / 20
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rewards.append(gained)
print("mean reward", np.mean(rewards))
