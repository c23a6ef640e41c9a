"""Ranks as threads: the same bits everywhere, and failures that name who failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from talking_avatar.engine.diffusion.config import AvatarDiTConfig, named_config
from talking_avatar.engine.diffusion.ranks.comm import Comm, LocalComm
from talking_avatar.engine.diffusion.ranks.group import RankGroup, pin_torch_threads
from talking_avatar.engine.diffusion.ranks.rendezvous import RankFailed


@pytest.fixture
def four() -> Iterator[RankGroup]:
    group = RankGroup(4, timeout_s=0.5)
    yield group
    group.close()


def test_sum_is_in_rank_order_and_equal_everywhere(four: RankGroup) -> None:
    parts = [torch.randn(50, 70) * 10.0**r for r in range(4)]
    sums = [four.run(lambda comm: comm.all_reduce(parts[comm.rank], "sum")) for _ in range(3)]
    in_order = parts[0] + parts[1] + parts[2] + parts[3]
    assert all(torch.equal(total, in_order) for run in sums for total in run)
    other_order = parts[3] + parts[2] + parts[1] + parts[0]
    assert not torch.equal(in_order, other_order), "else this proves nothing about order"


def test_a_partial_is_not_changed_and_bf16_is_added_in_fp32(four: RankGroup) -> None:
    part = torch.full((3,), 1.0, dtype=torch.bfloat16)
    tiny = torch.full((3,), 2.0**-9, dtype=torch.bfloat16)

    def work(comm: Comm) -> Tensor:
        return comm.all_reduce(part if comm.rank == 0 else tiny, "sum")

    assert four.run(work)[2].tolist() == [1 + 3 * 2.0**-9] * 3
    assert part.tolist() == [1.0] * 3


def test_one_rank_alone() -> None:
    x = torch.randn(3)
    assert torch.equal(LocalComm().all_reduce(x, "sum"), x)


@pytest.mark.parametrize("tp", [2, 3, 4, 8])
@pytest.mark.parametrize("name", ["tiny", "tiny_wan", "odd"])
def test_any_number_of_ranks_gives_the_same_latents(
    request: pytest.FixtureRequest, start, name: str, tp: int
) -> None:
    """``odd``: three heads and 50 columns divide by next to nothing, so zeros are added."""
    config: AvatarDiTConfig = (
        request.getfixturevalue(name)
        if name != "odd"
        else replace(
            named_config("tiny"), num_heads=3, ffn=50, num_layers=1, window=2, reset_interval=2
        )
    )
    alone, together, again = start(config), start(config, tp), start(config, tp)
    for _ in range(3):
        one, many = alone.chunk(), together.chunk()
        assert (one - many).abs().max() / one.abs().max() <= 1e-5
        assert all(torch.equal(many, other) for other in together.latents_by_rank)
        assert torch.equal(many, again.chunk()), "two runs"


def test_the_first_real_error_names_its_rank_and_the_others_stop(four: RankGroup) -> None:
    def work(comm: Comm) -> None:
        comm.all_reduce(torch.ones(2), "first")
        if comm.rank == 2:
            raise ZeroDivisionError("seven")
        comm.all_reduce(torch.ones(2), "second")

    begin = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 2 of 4: ZeroDivisionError\('seven'\)") as caught:
        four.run(work)
    assert time.monotonic() - begin < 1.0, "the bar: others stop within a second"
    assert caught.value.rank == 2
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("skips", [0, 3])
def test_a_rank_that_skips_a_collective_is_named(four: RankGroup, skips: int) -> None:
    def work(comm: Comm) -> None:
        for name in ("layers.0.out", "layers.0.down", "layers.1.out"):
            if (comm.rank, name) != (skips, "layers.0.down"):
                comm.all_reduce(torch.ones(2), name)

    with pytest.raises(RankFailed, match=f"rank {skips} came to 'layers.1.out") as caught:
        four.run(work)
    assert caught.value.rank == skips


def test_a_rank_that_skips_the_last_collective_is_named(four: RankGroup) -> None:
    def work(comm: Comm) -> None:
        comm.all_reduce(torch.ones(2), "first")
        if comm.rank != 1:
            comm.all_reduce(torch.ones(2), "last")

    message = r"rank 1 skipped 'last.*ended its work without it, after 1 meetings"
    with pytest.raises(RankFailed, match=message) as caught:
        four.run(work)
    assert caught.value.rank == 1


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    labels=st.lists(st.sampled_from("abc"), max_size=6),
    culprit=st.integers(0, 3),
    at=st.integers(0, 6),
    how=st.sampled_from(["skips", "adds", "renames", "raises", "nothing"]),
)
def test_any_single_deviation_is_blamed_on_its_rank(
    four: RankGroup, labels: list[str], culprit: int, at: int, how: str
) -> None:
    """Whatever one of four ranks does differently, the job ends, and the blame is right."""
    own = list(labels)
    if how == "skips":
        del own[at : at + 1]
    elif how == "adds":
        own.insert(at, "d")
    elif how == "renames":
        own[at : at + 1] = ["d"] * len(own[at : at + 1])

    def work(comm: Comm) -> int:
        mine = own if comm.rank == culprit else labels
        for index, label in enumerate(mine):
            if (how, comm.rank, index) == ("raises", culprit, at):
                raise KeyError(label)
            comm.all_reduce(torch.ones(2), label)
        return len(mine)

    deviates = own != labels or (how == "raises" and at < len(labels))
    if not deviates:
        assert four.run(work) == [len(labels)] * 4
        return
    with pytest.raises(RankFailed) as caught:
        four.run(work)
    assert caught.value.rank == culprit


def test_a_rank_that_hangs_is_named(four: RankGroup) -> None:
    release = threading.Event()

    def work(comm: Comm) -> None:
        if comm.rank == 3:
            release.wait(5)
            return
        try:
            comm.all_reduce(torch.ones(2), "sum")
        finally:
            release.set()

    with pytest.raises(RankFailed, match=r"rank 3 skipped 'sum.*did not come within 0\.5 s"):
        four.run(work)


def test_different_shapes_are_caught(four: RankGroup) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 came to 'sum \(3,\)'.*others came to 'sum \(2,"):
        four.run(lambda comm: comm.all_reduce(torch.ones(2 + (comm.rank == 1)), "sum"))


def test_a_group_works_on_after_a_failure(four: RankGroup) -> None:
    def fail(comm: Comm) -> None:
        raise ValueError(comm.rank)

    for _ in range(20):
        with pytest.raises(RankFailed):
            four.run(fail)
        assert [float(x) for x in four.run(lambda c: c.all_reduce(torch.ones(()), "n"))] == [
            4.0
        ] * 4


def rank_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("talking-avatar-rank")}


def test_close_leaves_no_threads() -> None:
    before = rank_threads()  # other tests' may still be ending
    group = RankGroup(3)
    mine = rank_threads() - before
    assert len(mine) == 3
    group.close()
    group.close()
    assert not any(thread.is_alive() for thread in mine)


def test_pinning_threads_is_for_one_thread_alone() -> None:
    before = torch.get_num_threads()
    seen: dict[str, int] = {}

    def pinned() -> None:
        pin_torch_threads(3)
        seen["pinned"] = torch.get_num_threads()

    def other() -> None:
        torch.ones(1000, 1000).sum()
        seen["other"] = torch.get_num_threads()

    for work in (pinned, other):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == {"pinned": 3, "other": before}
    assert torch.get_num_threads() == before
