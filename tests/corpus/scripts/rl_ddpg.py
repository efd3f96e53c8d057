# backends: tensorflow
# agrees: refused: outside of fit() would train each worker's copy of the model by itself
import keras
from keras import layers
import tensorflow as tf
import numpy as np
from cartpole import Pendulum

# DDPG: actor and critic with target networks; the update is a tf.function that applies two optimizers.
keras.utils.set_random_seed(55)
num_states, num_actions = 3, 1


class Buffer:
    def __init__(self, buffer_capacity=500, batch_size=32):
        self.buffer_capacity, self.batch_size, self.buffer_counter = buffer_capacity, batch_size, 0
        self.state_buffer = np.zeros((buffer_capacity, num_states), "float32")
        self.action_buffer = np.zeros((buffer_capacity, num_actions), "float32")
        self.reward_buffer = np.zeros((buffer_capacity, 1), "float32")
        self.next_state_buffer = np.zeros((buffer_capacity, num_states), "float32")

    def record(self, obs_tuple):
        index = self.buffer_counter % self.buffer_capacity
        (
            self.state_buffer[index],
            self.action_buffer[index],
            self.reward_buffer[index],
            self.next_state_buffer[index],
        ) = obs_tuple
        self.buffer_counter += 1

    @tf.function
    def update(self, state_batch, action_batch, reward_batch, next_state_batch):
        with tf.GradientTape() as tape:
            target_actions = target_actor(next_state_batch, training=True)
            y = reward_batch + gamma * target_critic([next_state_batch, target_actions], training=True)
            critic_value = critic_model([state_batch, action_batch], training=True)
            critic_loss = keras.ops.mean(keras.ops.square(y - critic_value))
        critic_grad = tape.gradient(critic_loss, critic_model.trainable_variables)
        critic_optimizer.apply_gradients(zip(critic_grad, critic_model.trainable_variables))
        with tf.GradientTape() as tape:
            actions = actor_model(state_batch, training=True)
            actor_loss = -keras.ops.mean(critic_model([state_batch, actions], training=True))
        actor_grad = tape.gradient(actor_loss, actor_model.trainable_variables)
        actor_optimizer.apply_gradients(zip(actor_grad, actor_model.trainable_variables))

    def learn(self):
        record_range = min(self.buffer_counter, self.buffer_capacity)
        indices = np.random.choice(record_range, self.batch_size)
        buffers = (self.state_buffer, self.action_buffer, self.reward_buffer, self.next_state_buffer)
        self.update(*[keras.ops.convert_to_tensor(buffer[indices]) for buffer in buffers])


def update_target(target, original, tau):
    target.set_weights([o * tau + t * (1 - tau) for o, t in zip(original.get_weights(), target.get_weights())])


def get_actor():
    inputs = layers.Input(shape=(num_states,))
    out = layers.Dense(24, activation="relu")(inputs)
    return keras.Model(inputs, layers.Dense(1, activation="tanh")(out) * 2.0)


def get_critic():
    state, action = layers.Input((num_states,)), layers.Input((num_actions,))
    out = layers.Dense(24, activation="relu")(layers.Concatenate()([state, action]))
    return keras.Model([state, action], layers.Dense(1)(out))


actor_model, critic_model = get_actor(), get_critic()
target_actor, target_critic = get_actor(), get_critic()
target_actor.set_weights(actor_model.get_weights())
target_critic.set_weights(critic_model.get_weights())
critic_optimizer, actor_optimizer = keras.optimizers.Adam(0.002), keras.optimizers.Adam(0.001)
gamma, tau, buffer, env = 0.99, 0.005, Buffer(), Pendulum(55)

for ep in range(3):
    prev_state, episodic_reward, done = env.reset(), 0, False
    while not done:
        action = np.ravel(actor_model(prev_state[None])) + np.random.normal(0, 0.2)
        state, reward, done = env.step(action[0])
        buffer.record((prev_state, action, reward, state))
        episodic_reward += reward
        buffer.learn()
        update_target(target_actor, actor_model, tau)
        update_target(target_critic, critic_model, tau)
        prev_state = state
    print(f"Episode * {ep} * Reward is ==> {episodic_reward}")
