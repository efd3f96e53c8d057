"""A pole on a cart, for the reinforcement scripts beside it: no package is needed."""

import math

import numpy as np


class CartPole:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.state = np.zeros(4)

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, 4)
        self.steps = 0
        return self.state.astype("float32")

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moving = push - 0.05 * turning * cos / 1.1
        self.state = np.array([x + 0.02 * v, v + 0.02 * moving, angle + 0.02 * spin, spin + 0.02 * turning])
        self.steps += 1
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21 or self.steps >= 100
        return self.state.astype("float32"), 1.0, done


class Pendulum:
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.angle, self.spin, self.steps = self.rng.uniform(-np.pi, np.pi), self.rng.uniform(-1, 1), 0
        return self._observed()

    def step(self, torque):
        torque = float(np.clip(torque, -2, 2))
        cost = ((self.angle + np.pi) % (2 * np.pi) - np.pi) ** 2 + 0.1 * self.spin**2 + 0.001 * torque**2
        self.spin = np.clip(self.spin + (15 * np.sin(self.angle) + 3 * torque) * 0.05, -8, 8)
        self.angle += self.spin * 0.05
        self.steps += 1
        return self._observed(), -cost, self.steps >= 40

    def _observed(self):
        return np.array([np.cos(self.angle), np.sin(self.angle), self.spin], "float32")
