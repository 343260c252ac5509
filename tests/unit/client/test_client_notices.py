"""What the user is told of its partitions: each once, in order, again behind an interrupt, none for another's sake."""

from functools import partial

import pytest

from metaq.client.fetching.notices import Notice, Notices
from metaq.client.records.results import TopicPartition

A, B = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)


class User:
    def __init__(self):
        self.heard = []
        self.done = []
        self.errors = []

    def __call__(self, assigned, partitions):
        self.heard.append((assigned, partitions))
        if self.errors:
            raise self.errors.pop()

    def notices(self):
        notices = Notices()
        notices.on_assigned, notices.on_revoked = partial(self, True), partial(self, False)
        return notices

    def notice(self, assigned, *partitions):
        return Notice(assigned, partitions, self.done.append)


@pytest.fixture
def user():
    return User()


def test_each_notice_is_told_once_and_in_order(user):
    notices = user.notices()
    notices.put(user.notice(True, B, A))
    notices.put(user.notice(False, A))
    notices.tell()
    notices.tell()
    assert user.heard == [(True, [A, B]), (False, [A])]
    assert user.done == [[A, B], [A]]
    assert not notices.waiting


def test_a_busy_partition_is_told_later_with_what_follows_for_it_and_others_do_not_wait(user):
    notices = user.notices()
    notices.put(user.notice(False, A, B))
    notices.put(user.notice(True, A, B))
    notices.tell(lambda partition: partition == A)
    assert user.heard == [(False, [B]), (True, [B])]
    assert notices.waiting
    notices.tell()
    assert user.heard[2:] == [(False, [A]), (True, [A])]
    assert user.done == [[B], [B], [A], [A]]


@pytest.mark.parametrize(("error", "told"), [(ValueError("the user's"), 1), (KeyboardInterrupt(), 2)])
def test_what_a_callback_raises_comes_out_and_the_notice_is_told_again_only_if_that_was_an_interrupt(user, error, told):
    notices = user.notices()
    notices.put(user.notice(True, A))
    user.errors.append(error)
    with pytest.raises(type(error)):
        notices.tell()
    assert (user.done, bool(notices.waiting)) == ([[A]][told - 1 :], told == 2)
    notices.tell()
    assert (user.heard, user.done) == ([(True, [A])] * told, [[A]])


def test_a_notice_of_nothing_is_taken_away(user):
    notices = user.notices()
    notices.put(user.notice(False))
    notices.tell()
    assert user.heard == []
    assert not notices.waiting
