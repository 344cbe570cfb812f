"""Plan what a write stores, without a database."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from expdb import errors
from expdb.storage.cached_records import EpisodeRecord
from expdb.storage.write_plan import ChunkWrite, EpisodeWrite, Segment, WritePlan
from expdb.storage.writing.pending_steps import PendingSteps, StepColumns


class Numbering(NamedTuple):
    """The step numbers of an episode with the steps of a write."""

    last_step: int  # the greatest number
    greatest: dict[str | None, int] | None  # the greatest number of each agent; None if unknown
    out_of_order: list[
        int
    ]  # indices of steps whose number does not exceed all earlier ones of their agent
    is_certain: bool  # whether the numbers of all steps except `out_of_order` are unused


def make_plan(
    pending: PendingSteps, current: Mapping[EpisodeRecord, EpisodeRecord] | None = None
) -> WritePlan:
    """Return the plan of a write; `current` maps outdated records to the stored episodes.

    The numbers and ordinals of steps continue those of their episode, so the plan must be made
    again if the stored episode differs.
    """
    steps, indices, count = pending.steps, pending.indices_by_episode(), len(pending)
    alone = len(indices) == 1  # the usual case, which takes a third of the time
    numbers, place_of, ordinals = [0] * count, [1] * count, [0] * count
    episodes: list[EpisodeWrite] = []
    has_versions = False  # whether the steps of a writer have another version than their episode
    for place, (record, rows) in enumerate(indices.items(), 1):
        before, details = (current or {}).get(record, record), pending.details.get(record, {})
        last_step, greatest, out_of_order, is_certain = assign_numbers(steps, before, rows, numbers)
        if alone:
            ordinals = list(range(before.length, before.length + count))
        else:
            for ordinal, row in enumerate(rows, before.length):
                place_of[row], ordinals[row] = place, ordinal
        rewards = [reward for row in rows if (reward := steps.reward[row]) is not None]
        gained = sum(rewards) if rewards else None
        after = before.changed(
            length=before.length + len(rows),
            last_step=last_step,
            greatest=greatest,
            ordered=before.ordered and not out_of_order,
            last_position=rows[-1],
            gained=before.gained if gained is None else gained + (before.gained or 0.0),
            uses_version=True,
            **details,
        )
        has_versions |= record.step_version is not None
        status = pending.ended.get(record, "open")
        needs_numbers = bool(out_of_order) or not is_certain
        episodes.append(
            EpisodeWrite(
                record, before, after, rows, status, gained, details, out_of_order, needs_numbers
            )
        )
    chunks: list[ChunkWrite] = []
    segments: list[Segment] = []
    row = 0
    for block in pending.blocks:
        stop = row + block.steps
        is_single = alone or len(set(place_of[row:stop])) == 1
        columns = numbers, steps.reward, steps.terminated, steps.truncated
        system = tuple([column[row:stop] for column in columns])
        chunks.append(ChunkWrite(stop - 1, row, place_of[row] if is_single else 0, block, system))
        if alone:
            segments.append((stop - 1, row, 1, ordinals[row], stop - 1, 0))
        else:
            segments += _runs(place_of, ordinals, row, stop)
        row = stop
    final = None
    if pending.final and pending.final_is_in_block:
        final = (row - 1, pending.blocks[-1].steps, sorted(pending.final))
    others = tuple(steps[2:]) if count else ()
    if count and (has_versions or steps.has_versions):
        others = (*others[:-3], *_own_versions(steps, episodes), others[-1])
    return WritePlan(count, episodes, numbers, place_of, chunks, segments, final, others)


def assign_numbers(
    steps: StepColumns, episode: EpisodeRecord, indices: list[int], step: list[int]
) -> Numbering:
    """Assign step numbers to the steps `indices` of an episode, in `step`.

    The steps of each agent are numbered separately.
    """
    numbers, out_of_order, agents = steps.step, list[int](), steps.agent_id
    is_known = is_certain = episode.greatest is not None or not episode.length
    greatest = dict(episode.greatest or ())
    last_step = episode.last_step
    if not is_known and last_step is not None:
        greatest[None] = last_step  # no agent has a greater number
    has_agents = agents.count(None) < len(agents)
    if not is_known:
        is_certain = not has_agents and all(numbers[index] is not None for index in indices)
    for agent, rows in _by_agent(steps, indices) if has_agents else ((None, indices),):
        last = greatest.get(agent, episode.unknown_greatest)
        for index in rows:
            number = numbers[index]
            if number is None:
                number = 0 if last is None else last + 1
            step[index] = number
            if last is not None and number <= last:
                out_of_order.append(index)
            else:
                last = number
        assert last is not None
        greatest[agent] = last
        if last_step is None or last > last_step:
            last_step = last
    assert last_step is not None
    if last_step >= 2**63:
        raise errors.InvalidValue(
            f"episode {episode.episode_id!r} already has the greatest step number that fits 64 "
            "bits; begin another episode"
        )
    return Numbering(last_step, greatest if is_known else None, out_of_order, is_certain)


def _by_agent(steps: StepColumns, indices: list[int]) -> Iterable[tuple[str | None, list[int]]]:
    """Return the indices of steps by agent, None for the agent of the episode."""
    rows: dict[str | None, list[int]] = {}
    for index in indices:
        rows.setdefault(steps.agent_id[index], []).append(index)
    return rows.items()


def _own_versions(
    steps: StepColumns, episodes: list[EpisodeWrite]
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Return each step's versions, with None for those that equal the version of its episode."""
    own, ends = list(steps.policy_version), list(steps.policy_version_end)
    for write in episodes:
        usual = write.after.policy_version
        usual_of_steps = usual if write.record.step_version is None else write.record.step_version
        for row in write.rows:
            began = usual_of_steps if own[row] is None else own[row]
            ends[row] = None if ends[row] == began else ends[row]
            own[row] = None if began == usual else began
        if all(own[row] is not None for row in write.rows):
            write.after.uses_version = write.before.id is not None and write.before.uses_version
    return tuple(own), tuple(ends)


def _runs(places: list[int], ordinals: list[int], start: int, stop: int) -> Iterator[Segment]:
    """Yield the segments of a chunk: its runs of neighbouring steps of one episode."""
    begin = start
    for row in range(start + 1, stop + 1):
        if row == stop or places[row] != places[begin] or ordinals[row] != ordinals[row - 1] + 1:
            yield row - 1, begin, places[begin], ordinals[begin], stop - 1, begin - start
            begin = row
