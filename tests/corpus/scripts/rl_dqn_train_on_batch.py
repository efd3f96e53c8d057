# backends: jax torch
# agrees: trend
"""Deep Q-learning: an agent with a memory, a target network, and train_on_batch."""

import random
from collections import deque

import keras
import numpy as np
from cartpole import CartPole
from keras import layers, models

keras.utils.set_random_seed(9)


class DQNAgent:
    def __init__(self, state_size, action_size):
        self.state_size, self.action_size = state_size, action_size
        self.memory = deque(maxlen=500)
        self.gamma, self.epsilon, self.epsilon_min, self.epsilon_decay = 0.95, 1.0, 0.05, 0.97
        self.model, self.target_model = self._build_model(), self._build_model()
        self.update_target_model()

    def _build_model(self):
        model = models.Sequential(
            [layers.Input((self.state_size,)), layers.Dense(24, activation="relu"), layers.Dense(self.action_size)]
        )
        model.compile(loss="huber", optimizer=keras.optimizers.Adam(learning_rate=0.005))
        return model

    def update_target_model(self):
        self.target_model.set_weights(self.model.get_weights())

    def act(self, state):
        if np.random.rand() <= self.epsilon:
            return random.randrange(self.action_size)
        return int(np.argmax(self.model.predict(state[None], verbose=0)[0]))

    def replay(self, batch_size):
        minibatch = random.sample(self.memory, batch_size)
        states = np.stack([m[0] for m in minibatch])
        next_states = np.stack([m[3] for m in minibatch])
        targets = self.model.predict_on_batch(states).copy()
        following = self.target_model.predict_on_batch(next_states)
        for i, (_, action, reward, _, done) in enumerate(minibatch):
            targets[i][action] = reward if done else reward + self.gamma * np.amax(following[i])
        loss = self.model.train_on_batch(states, targets)
        self.epsilon = max(self.epsilon_min, self.epsilon * self.epsilon_decay)
        return float(np.ravel(loss)[0])


if __name__ == "__main__":
    env, agent, losses = CartPole(9), DQNAgent(4, 2), []
    for episode in range(6):
        state = env.reset()
        for _ in range(40):
            action = agent.act(state)
            next_state, reward, done = env.step(action)
            agent.memory.append((state, action, -1.0 if done else reward, next_state, done))
            state = next_state
            if len(agent.memory) > 32:
                losses.append(agent.replay(32))
            if done:
                agent.update_target_model()
                break
    print("updates were made:", len(losses) > 20, "losses are finite:", bool(np.isfinite(losses).all()))
    print("mean of the last losses", float(np.mean(losses[-10:])))
