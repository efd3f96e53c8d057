"""Every batch of every epoch is counted once, whoever computes it, however often."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.store.decisions.leases import Lease, LeaseBook
from shoal.store.values.operations import Batch, Tally

unhurried = settings(deadline=None)
NEVER = 1e9


def take(book: LeaseBook, worker: str, until: float = NEVER) -> int | None:
    lease = book.lease_next(worker, until)
    return None if lease is None else lease.batch.place


@unhurried
@given(st.lists(st.integers(0, 40)))
def test_a_tally_is_a_set(places):
    tally = Tally()
    for place in places:
        tally = tally.plus(place)
    assert [place in tally for place in range(50)] == [place in places for place in range(50)]
    assert len(tally) == len(set(places))


def test_a_tally_that_fills_up_in_order_stays_small():
    tally = Tally()
    for place in range(1000):
        tally = tally.plus(place ^ 1)
    assert tally == Tally(1000)


@unhurried
@given(st.integers(1, 12), st.integers(1, 3), st.data())
def test_whatever_happens_every_batch_counts_once_and_in_its_epoch(batches, ahead, data):
    """Against a plain model: who may hold what, and what is counted."""
    book = LeaseBook(batches, ahead=ahead)
    ever: list[Lease] = []  # a worker may acknowledge whatever it was once given
    counted: list[Batch] = []
    now = 0.0
    for _ in range(data.draw(st.integers(0, 60))):
        worker = f"worker-{data.draw(st.integers(0, 2))}"
        match data.draw(st.sampled_from(("take", "take", "acknowledge", "acknowledge", "lost", "expire", "write"))):
            case "take":
                lease = book.lease_next(worker, now + 2.0)
                if lease is not None:
                    assert lease.batch not in counted
                    assert lease.batch.epoch == book.epoch
                    ever.append(lease)
            case "acknowledge" if ever:
                batch = data.draw(st.sampled_from(ever)).batch
                assert book.acknowledge(batch) == (batch not in counted)
                counted += [] if batch in counted else [batch]
            case "lost":
                book.lost(worker)
            case "expire":
                now += 1.0
                book.expire(now)
            case "write":
                book = msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=LeaseBook)
        held = [lease.worker for lease in book.leases.values()]
        assert all(held.count(worker) <= ahead for worker in held)
        assert book.is_over == (len([batch for batch in counted if batch.epoch == book.epoch]) == batches)
        if book.is_over:
            book.next_epoch(batches)
    while not book.is_over:  # whoever is left can finish the epoch
        book.expire(NEVER)
        lease = book.lease_next("worker-9", 0.0)
        assert lease is not None
        assert book.acknowledge(lease.batch)


def test_fast_workers_take_more():
    book = LeaseBook(6)
    assert take(book, "slow") == 0
    for place in range(1, 6):
        assert take(book, "fast") == place
        assert book.acknowledge(Batch(0, place))
    assert take(book, "fast") is None, "all are dealt"
    assert not book.is_over, "the slow one still has its first"


def test_a_worker_holds_no_more_than_it_may():
    book = LeaseBook(9, ahead=2)
    assert [take(book, "a"), take(book, "a"), take(book, "a")] == [0, 1, None]
    assert take(book, "b") == 2


def test_a_lost_workers_batches_are_dealt_again_first():
    book = LeaseBook(9, ahead=2)
    assert [take(book, "a"), take(book, "a"), take(book, "b")] == [0, 1, 2]
    assert book.lost("a") == (Batch(0, 0), Batch(0, 1))
    assert [take(book, "b"), take(book, "c"), take(book, "c")] == [0, 1, 3]


def test_a_late_acknowledgement_counts_if_it_is_the_first():
    book = LeaseBook(2)
    take(book, "stalled", until=1.0)
    assert book.expire(0.9) == ()
    assert book.expire(1.0) == (Batch(0, 0),)
    assert take(book, "other") == 0
    assert book.acknowledge(Batch(0, 0)), "of the one that had stalled"
    assert not book.acknowledge(Batch(0, 0)), "of the other"
    assert take(book, "other") == 1


def test_an_acknowledgement_of_a_batch_that_waits_to_be_dealt_again_counts_too():
    book = LeaseBook(2)
    take(book, "a")
    book.lost("a")
    assert book.acknowledge(Batch(0, 0))
    assert take(book, "b") == 1


def test_a_batch_that_was_computed_in_vain_is_given_back_by_its_holder_only():
    book = LeaseBook(2)
    take(book, "a")
    book.give_back("b", Batch(0, 0))
    assert take(book, "b") == 1
    book.give_back("a", Batch(0, 0))
    assert take(book, "c") == 0


def test_what_was_never_leased_and_what_belongs_to_another_epoch_does_not_count():
    book = LeaseBook(1)
    assert not book.acknowledge(Batch(0, 0))
    take(book, "a")
    assert book.acknowledge(Batch(0, 0))
    book.next_epoch(2)
    take(book, "a")
    assert not book.acknowledge(Batch(0, 0)), "it is the epoch before's"
    assert not book.acknowledge(Batch(2, 0))
    assert len(book.counted) == 0


def test_the_end_of_an_epoch_is_a_barrier():
    book = LeaseBook(2, ahead=2)
    assert [take(book, "a"), take(book, "b"), take(book, "c")] == [0, 1, None]
    book.acknowledge(Batch(0, 1))
    with pytest.raises(RuntimeError, match="1 of 2 batches"):
        book.next_epoch(2)


def test_an_epoch_needs_a_batch():
    with pytest.raises(UsageError, match="0 batches"):
        LeaseBook(0)


# An epoch that is ended early -----------------------------------------------------------------------------


def test_a_halted_epoch_ends_with_what_is_leased():
    book = LeaseBook(9)
    assert [take(book, "a"), take(book, "b")] == [0, 1]
    book.halt()
    book.acknowledge(Batch(0, 0))
    assert take(book, "a") is None, "nothing more is dealt"
    assert not book.is_over
    assert book.acknowledge(Batch(0, 1))
    assert book.is_over


def test_what_comes_back_of_a_halted_epoch_is_left_out():
    book = LeaseBook(9, ahead=2)
    assert [take(book, "a"), take(book, "a"), take(book, "b"), take(book, "c")] == [0, 1, 2, 3]
    book.halt()
    book.lost("a")
    book.lost("b")
    book.give_back("c", Batch(0, 3))
    assert book.is_over
    assert not book.acknowledge(Batch(0, 2)), "it comes too late"


def test_a_halted_epoch_waits_for_who_takes_longer_than_its_lease():
    """Its update would come when others have taken the weights of the epoch's end, and theirs would lack it."""
    book = LeaseBook(9)
    assert take(book, "a", until=1.0) == 0
    book.halt()
    assert book.expire(2.0) == ()
    assert not book.is_over
    assert book.acknowledge(Batch(0, 0))
    assert book.is_over


def test_what_was_free_when_the_epoch_was_halted_is_left_out():
    book = LeaseBook(9)
    assert [take(book, "a"), take(book, "b")] == [0, 1]
    book.lost("a")
    book.halt()
    assert take(book, "b") is None
    assert book.acknowledge(Batch(0, 1))
    assert book.is_over


def test_the_epoch_after_a_halted_one_is_whole():
    book = LeaseBook(3)
    take(book, "a")
    book.halt()
    book.acknowledge(Batch(0, 0))
    book.next_epoch(3)
    for place in range(3):
        assert not book.is_over
        assert take(book, "a") == place
        assert book.acknowledge(Batch(1, place))
    assert book.is_over


@unhurried
@given(st.integers(1, 12), st.integers(1, 3), st.data())
def test_whatever_happens_a_halted_epoch_ends(batches, ahead, data):
    """It is over as soon as nobody holds anything; written down and read again, it is the same."""
    book = LeaseBook(batches, ahead=ahead)
    for _ in range(data.draw(st.integers(1, 30))):
        worker = f"worker-{data.draw(st.integers(0, 2))}"
        match data.draw(st.sampled_from(("take", "take", "acknowledge", "lost"))):
            case "take":
                book.lease_next(worker, 1.0)
            case "acknowledge" if book.leases:
                book.acknowledge(book.leases[data.draw(st.sampled_from(sorted(book.leases)))].batch)
            case "lost":
                book.lost(worker)
    if book.dealt:
        book.halt()
        book = msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=LeaseBook)
        while book.leases:
            assert not book.is_over
            lease = book.leases[data.draw(st.sampled_from(sorted(book.leases)))]
            if data.draw(st.booleans()):
                book.acknowledge(lease.batch)
            else:
                book.lost(lease.worker)
        assert book.is_over
        assert book.lease_next("worker-0", 1.0) is None


# Pauses -------------------------------------------------------------------------------------------------


def test_a_paused_book_deals_again_what_came_back_and_nothing_new():
    book = LeaseBook(10, ahead=2)
    for worker in ("a", "b", "a"):
        book.lease_next(worker, until=1.0)
    book.paused = True
    assert book.lease_next("b", until=1.0) is None
    book.acknowledge(Batch(0, 1))
    assert not book.rests
    book.lost("a")
    assert [book.lease_next("b", until=1.0).batch.place for _ in range(2)] == [0, 2]
    assert book.lease_next("b", until=1.0) is None
    book.acknowledge(Batch(0, 2))
    assert not book.rests
    book.acknowledge(Batch(0, 0))
    assert book.rests
    assert book.counted == Tally(3)
    book.paused = False
    assert book.lease_next("b", until=1.0).batch.place == 3


def test_the_end_of_an_epoch_is_no_rest_and_the_beginning_of_the_next_one_is():
    book = LeaseBook(1, paused=False)
    book.lease_next("a", until=1.0)
    book.paused = True
    book.acknowledge(Batch(0, 0))
    assert book.is_over
    assert not book.rests
    book.next_epoch(5)
    assert book.rests
    assert len(book.counted) == 0


def test_a_book_may_begin_in_the_middle_of_an_epoch():
    book = LeaseBook.begun(5, 3, 1, done=3)
    assert not book.acknowledge(Batch(3, 2))
    assert book.lease_next("a", until=1.0).batch == Batch(3, 3)
    assert book.acknowledge(Batch(3, 3))
    assert book.lease_next("a", until=1.0).batch == Batch(3, 4)
    book.acknowledge(Batch(3, 4))
    assert book.is_over
