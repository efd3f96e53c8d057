"""Random numbers depend on the seed, the step and the piece: never on the worker."""

from __future__ import annotations

import numpy as np

from shoal.training.seeds import Seeds


def make() -> Seeds:
    return Seeds(5, [np.array([11, 0]), np.array([12, 0])])


def test_pieces_steps_and_layers_all_get_other_numbers() -> None:
    seeds = make()
    seen = [tuple(state) for piece in range(16) for state in seeds.of_piece(piece)]
    own = [seeds.of_backend(piece) for piece in range(16)]
    seeds.advance()
    seen += [tuple(state) for piece in range(16) for state in seeds.of_piece(piece)]
    own += [seeds.of_backend(piece) for piece in range(16)]
    assert len(set(seen)) == len(seen) == 64
    assert len(set(own)) == len(own) == 32


def test_the_same_seed_step_and_piece_give_the_same_numbers_everywhere() -> None:
    one, other = make(), make()
    for seeds in (one, other):
        seeds.advance()
    assert np.array_equal(one.of_piece(3), other.of_piece(3))
    assert one.of_backend(3) == other.of_backend(3)


def test_numbers_fit_every_backends_seed_type() -> None:
    states = make().of_piece(1)
    assert states.min() >= 0
    assert states.max() < 2**31


def test_between_two_fits_a_generator_has_moved_on_by_the_steps() -> None:
    seeds = make()
    for _ in range(3):
        seeds.advance()
    assert [state.tolist() for state in seeds.states()] == [[11, 3], [12, 3]]


def test_seeds_can_be_taken_back():
    seeds = Seeds(7, [np.array([3, 11])])
    assert (seeds.after(40).after(-40).rows() == seeds.rows()).all()
    assert (seeds.after(-12).after(12).rows() == seeds.rows()).all()
